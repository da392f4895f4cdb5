//! A broker that has lost the queue of orders, and not its name: RabbitMQ that is killed while the queue is deleted.

use std::path::Path;
use std::time::Duration;

use doorbuster::rehearsal::servers::{Ending, Kind, Server};

use crate::support::{Buyer, Database, World, behind_proxy, run, sale, until};

const LONG: Duration = Duration::from_secs(90);

/// Removes what the stopped broker in `folder` has of a quorum queue.
fn lose_queue(folder: &Path, queue: &str) {
    let nodes = std::fs::read_dir(folder.join("rabbitmq/data")).unwrap().flatten();
    let quorum = nodes.map(|node| node.path().join("quorum")).find(|path| path.is_dir()).expect("a node");
    let node = std::fs::read_dir(quorum).unwrap().flatten().next().expect("a node").path();
    let of_queue = |path: &Path| {
        let config = std::fs::read(path.join("config")).unwrap_or_default();
        String::from_utf8_lossy(&config).contains(queue)
    };
    let lost =
        std::fs::read_dir(node).unwrap().flatten().map(|entry| entry.path()).find(|path| of_queue(path));
    std::fs::remove_dir_all(lost.expect("the queue's folder")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_the_broker_has_lost_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(Database::Sqlite).await;
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let confirmed = async |user: &str| {
        let buyer = Buyer::of(&running, user);
        let order = until("the gate answers", LONG, async || {
            Some(buyer.buy(sale.id.as_str(), "k").await).filter(|answer| answer.status < 500)
        })
        .await;
        let path = format!("/v1/sales/{}/orders/{}", sale.id, order.order_id());
        until("the row", LONG, async || (buyer.get(&path).await.json["status"] == "confirmed").then_some(()))
            .await;
    };
    confirmed("before").await;

    // Killed so soon after its first stream, RabbitMQ 3.10 would lose that one too.
    broker.stop(Ending::Orderly).await;
    lose_queue(folder.path(), &format!("{}.orders", world.name));
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    let lost = format!("the broker has lost {}.orders, but not its name: ", world.name);
    assert!(code == 3 && out.contains(&lost), "{code}: {out}{err}");
    let address = broker.url.split('/').find(|part| part.parse::<std::net::SocketAddr>().is_ok());
    proxy.point_to(vec![address.expect("an address").parse().unwrap()]);
    confirmed("after").await;
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    assert_eq!(code, 0, "{out}{err}");
    running.stop().await;
    broker.stop(Ending::AtOnce).await;
}
