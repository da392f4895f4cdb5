//! Two fronts and two workers run as separate processes. Killing one of them loses no order, and signals drain it.

use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::domain::SaleState;
use doorbuster::front::Signer;
use doorbuster::process::Role;

use crate::support::{Answer, Buyer, Database, Doorbuster, World, run, sale, until};

const LONG: Duration = Duration::from_secs(60);

async fn buy_all(
    fronts: &[Doorbuster],
    tokens: &Signer,
    sale: &str,
    users: std::ops::Range<u32>,
) -> Vec<(Buyer, Answer)> {
    let buying = users.map(|nth| {
        let front = &fronts[nth as usize % fronts.len()];
        let buyer = Buyer::with(front.buyers.expect("a front"), tokens, &format!("user{nth}"), None);
        async move {
            // After a 5xx, such as an unknown outcome, the buyer clicks again with the same key.
            let answer = until("the servers answer", Duration::from_secs(60), async || {
                buyer.try_buy(sale, "k").await.filter(|answer| answer.status < 500)
            });
            let answer = answer.await;
            (buyer, answer)
        }
    });
    futures_util::future::join_all(buying).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_worker_mid_sale_loses_nothing() {
    let world = World::new(Database::Postgres).await;
    let (code, out, err) = run(Some(&world), &["migrate"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let parts = world.parts().await;
    let sale = sale(&world.name, 400, 1);
    world.open_sale(&parts, &sale).await;
    let fronts = [Doorbuster::start(&world, "front").await, Doorbuster::start(&world, "front").await];
    let mut doomed = Doorbuster::start(&world, "worker").await;
    let worker = Doorbuster::start(&world, "worker").await;
    let tokens = Signer::new(world.config().auth());

    let sold = async || parts.store.sale(&sale.id).await.unwrap().expect("a row").items[0].sold;
    let buying = buy_all(&fronts, &tokens, sale.id.as_str(), 0..600);
    let killing = async {
        until("the first rows are there", Duration::from_secs(30), async || (sold().await > 0).then_some(()))
            .await;
        doomed.kill();
    };
    let (answers, ()) = tokio::join!(buying, killing);
    let accepted: Vec<_> = answers.iter().filter(|(_, answer)| answer.status == 202).collect();
    assert_eq!(accepted.len(), 400);
    // The killed worker's leases end after 5 s. Its deliveries come again at once.
    let books = until("every order has ended", Duration::from_secs(60), async || {
        Some(audit(&parts.gate, &parts.store, &sale.id).await.unwrap()).filter(|books| books.is_at_rest())
    })
    .await;
    assert!(books.balances(), "{books:?}");
    assert_eq!(books.live_orders, 400);
    for (buyer, answer) in accepted {
        // Ask the front that did not take the order.
        let other =
            fronts.iter().find_map(|front| front.buyers.filter(|at| *at != buyer.at)).expect("two fronts");
        let read = Buyer { at: other, ..buyer.clone() }.get(&answer.headers["location"]).await;
        assert_eq!(read.json["status"], "confirmed", "{}", read.text);
    }
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drill_balances_when_a_worker_is_killed_during_it() {
    let world = World::new(Database::Postgres).await;
    let parts = world.parts().await;
    let front = Doorbuster::start(&world, "front").await;
    let mut doomed = Doorbuster::start(&world, "worker").await;
    let _worker = Doorbuster::start(&world, "worker").await;
    let (url, operations) = (front.buyers.expect("a front").to_string(), front.operations.to_string());
    let args = [
        "drill",
        "rush",
        "--units",
        "1000",
        "--buyers",
        "1500",
        "--rate",
        "500",
        "--url",
        &url,
        "--operations",
        &operations,
    ];
    let killing = async {
        until("rows are written", Duration::from_secs(60), async || {
            let sales = parts.store.sales().await.unwrap();
            sales.first().filter(|sale| sale.items[0].sold > 100).map(|_| ())
        })
        .await;
        doomed.kill();
    };
    let ((code, out, err), ()) = tokio::join!(run(Some(&world), &args), killing);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("sold 1000 of 1000 · 0 oversold · 0 duplicate · 0 lost"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_front_leaves_its_orders_to_the_others() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.grace_ms=300").set("sweep.every_ms=100").set("sweep.spacing_ms=500");
    let parts = world.parts().await;
    let sale = sale(&world.name, 200, 1);
    world.open_sale(&parts, &sale).await;
    let mut fronts = vec![Doorbuster::start(&world, "front").await, Doorbuster::start(&world, "front").await];
    let tokens = Signer::new(world.config().auth());
    let answers = buy_all(&fronts, &tokens, sale.id.as_str(), 0..150).await;
    assert!(answers.iter().all(|(_, answer)| answer.status == 202));
    fronts[0].kill();
    let _worker = Doorbuster::start(&world, "worker").await;
    let books = until("every order has ended", Duration::from_secs(60), async || {
        Some(audit(&parts.gate, &parts.store, &sale.id).await.unwrap()).filter(|books| books.is_at_rest())
    })
    .await;
    assert!(books.balances(), "{books:?}");
    assert_eq!(books.live_orders, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_waits_is_answered_before_the_front_stops() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    // Without a worker nothing is confirmed, so the buyer waits.
    let mut front = Doorbuster::start(&world, "front").await;
    let tokens = Signer::new(world.config().auth());
    let buyer = Buyer::with(front.buyers.expect("a front"), &tokens, "ada", None);
    let path = format!("/v1/sales/{}/orders", sale.id);
    let waiting = tokio::spawn(async move { buyer.post(&path, &[("prefer", "wait=10")], "").await });
    until("the order is taken", Duration::from_secs(20), async || {
        let gate = parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        (gate.waiting == 1).then_some(())
    })
    .await;
    terminate(&front);
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status, answer.json["status"].as_str()), (202, Some("accepted")), "{}", answer.text);
    let ended = tokio::time::timeout(Duration::from_secs(15), front.child.wait()).await;
    assert!(ended.expect("in time").expect("waited").success());
}

fn terminate(process: &Doorbuster) {
    let pid = rustix::process::Pid::from_raw(process.child.id().expect("running") as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once() {
    let mut world = World::new(Database::Sqlite).await;
    // Long enough that draining cannot be mistaken for an immediate end.
    world.set("process.drain_ms=600000").set("front.request_within_ms=60000");
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    let mut front = Doorbuster::start(&world, "front").await;
    // A request that never ends keeps it draining.
    use tokio::io::AsyncWriteExt as _;
    let mut stream = tokio::net::TcpStream::connect(front.buyers.expect("a front")).await.unwrap();
    stream.write_all(b"POST /v1/sales/s/orders HTTP/1.1\r\nhost: x\r\ncontent-le").await.unwrap();
    terminate(&front);
    until("the front drains", Duration::from_secs(20), async || front.has_logged("stopping").then_some(()))
        .await;
    terminate(&front);
    let ended = tokio::time::timeout(Duration::from_secs(20), front.child.wait()).await;
    assert_eq!(ended.expect("at once").expect("waited").code(), Some(130));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains_and_ends_in_time() {
    let world = World::new(Database::Sqlite).await;
    world.parts().await;
    for verb in ["front", "worker"] {
        let mut process = Doorbuster::start(&world, verb).await;
        terminate(&process);
        let ended = tokio::time::timeout(Duration::from_secs(15), process.child.wait()).await;
        assert!(ended.expect("in time").expect("waited").success(), "{verb}");
        until("the process logs that no work is left", Duration::from_secs(5), async || {
            process.has_logged("no work in progress").then_some(())
        })
        .await;
    }
}

/// The gate has a unit too many. The worker that records the refusal dies before it reports to the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_whose_worker_died_pauses_the_sale_all_the_same() {
    let mut world = World::new(Database::Postgres).await;
    world.set("sweep.overtaken_after_ms=1000").set("sweep.every_ms=200");
    // All four in one batch.
    world.set("worker.linger_ms=1000");
    let front = world.running_as(Role::Front).await;
    let mut sale = sale(&world.name, 3, 1);
    front.parts.store.create_sale(&sale).await.unwrap();
    sale.items[0].stock = 4;
    world.load(&front.parts.gate, &sale).await;
    for nth in 0..4 {
        let answer = Buyer::of(&front, &format!("user{nth}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    let mut worker = Doorbuster::start_with(&world, "worker", Some("settle.before=abort")).await;
    until("the worker has died", Duration::from_secs(15), async || worker.has_ended().then_some(())).await;
    let stopped = until("the sweep pauses the sale", LONG, async || {
        let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        (gate.state == SaleState::Paused && gate.waiting == 0).then_some(gate)
    })
    .await;
    assert_eq!(stopped.items[0].left, 0, "the phantom unit is not sold again");
    let totals = front.parts.store.totals(&sale.id).await.unwrap();
    assert_eq!((totals.live_orders, totals.failed_orders), (3, 1), "one order fails");
    front.stop().await;
}
