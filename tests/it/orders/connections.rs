//! Connections: how many may be open, what each takes while it is silent, and that parking one loses nothing.

use std::net::SocketAddr;
use std::time::Duration;

use doorbuster::front::Signer;
use futures_util::StreamExt as _;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::hostile::with_open_sale;
use crate::support::{Buyer, Database, Doorbuster, World, request, sale, until};

const LONG: Duration = Duration::from_secs(30);

/// The silence that these tests are about: longer than a connection must be silent to be parked.
const PARKED: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_cap_wait_and_are_served() {
    let (_world, running, path) = with_open_sale(&["front.connections=2"]).await;
    let buyers: Vec<_> = (0..20).map(|nth| Buyer::of(&running, &format!("user{nth}"))).collect();
    let answers = futures_util::future::join_all(buyers.iter().map(|buyer| buyer.post(&path, &[], ""))).await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(accepted, 10, "ten units, twenty buyers, two connections");
    running.stop().await;
}

/// Each connection is an open file, and so are those to Redis and those of operators who check the front.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_leaves_a_front_the_open_files_it_needs() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.header_within_ms=60000");
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    let front = Doorbuster::start_with_files(&world, "front", 600).await;
    assert!(front.has_logged("the open-file limit has room for 336"));
    // A client that cannot be served yet waits in the backlog and is not rejected.
    let connecting = (0..600).map(|_| TcpStream::connect(front.buyers.unwrap()));
    let connecting = futures_util::future::join_all(connecting);
    let silent = tokio::time::timeout(Duration::from_secs(30), connecting).await.expect("all can connect");
    assert!(silent.iter().all(Result::is_ok));
    let ready = until("the front is ready", Duration::from_secs(30), async || {
        let ready = request(front.operations, "GET", "/readyz", &[], b"").await;
        (ready.status == 200).then_some(())
    });
    tokio::time::timeout(Duration::from_secs(30), ready).await.expect("the front answers its operators");
    drop(silent);
    let tokens = Signer::new(world.config().auth());
    let answer = Buyer::with(front.buyers.unwrap(), &tokens, "ada", None).buy(sale.id.as_str(), "k").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
}

/// Buyers who wait for the opening, or for their orders, keep their connections open.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_that_have_asked_take_little_memory() {
    doorbuster::process::raise_file_limit();
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.header_within_ms=60000").set("front.address_connections=0").set("front.address_rate=");
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    let front = Doorbuster::start(&world, "front").await;
    let at = front.buyers.unwrap();
    let head = format!("GET /v1/sales/{} HTTP/1.1\r\nhost: t\r\n\r\n", sale.id);
    assert!(ask(&mut connect(at).await, &head).await.starts_with("HTTP/1.1 200"));
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = usize::try_from(files - 1_000).unwrap().min(10_000);
    let before = memory(&front);
    let mut connections: Vec<Client> = futures_util::stream::iter(0..open)
        .map(async |_| {
            let mut connection = connect(at).await;
            let answer = ask(&mut connection, &head).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            connection
        })
        .buffer_unordered(100)
        .collect()
        .await;
    // Of the 100 MB that a front may have, 35 are left for its code.
    let most = 65_000_000 * connections.len() / 10_000;
    let mut seen = 0;
    until("the silent connections are parked", LONG, async || {
        // A front is never idle: only a thread that does something gives back what it has freed.
        for connection in connections.iter_mut().take(100) {
            assert!(ask(connection, &head).await.starts_with("HTTP/1.1 200"));
        }
        seen = memory(&front);
        (seen < most).then_some(())
    })
    .await;
    println!("{} silent connections: {seen} bytes, {before} without them", connections.len());
    for connection in connections.iter_mut().step_by(100) {
        assert!(
            ask(connection, &head).await.starts_with("HTTP/1.1 200"),
            "a parked connection is served again"
        );
    }
}

/// What a process has allocated and in memory, in bytes: without its code, which takes 40 MB in a debug build.
fn memory(process: &Doorbuster) -> usize {
    let pid = process.child.id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says");
    resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

type Client = BufReader<TcpStream>;

async fn connect(at: SocketAddr) -> Client {
    BufReader::with_capacity(512, TcpStream::connect(at).await.expect("it connects"))
}

/// Sends bytes and reads one response.
async fn ask(client: &mut Client, bytes: &str) -> String {
    client.write_all(bytes.as_bytes()).await.unwrap();
    response(client).await
}

async fn response(client: &mut Client) -> String {
    let reading = async {
        let (mut head, mut length) = (String::new(), 0);
        while client.read_line(&mut head).await.expect("a head") > 2 {
            let line = head.lines().last().unwrap_or_default();
            length = line.strip_prefix("content-length: ").map_or(length, |text| text.parse().unwrap());
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body).await.expect("a whole body");
        head
    };
    tokio::time::timeout(LONG, reading).await.expect("an answer in time")
}

/// The peer falls silent between requests, within a head, and within the second of two heads that came together.
#[tokio::test(flavor = "multi_thread")]
async fn silence_at_any_byte_loses_nothing() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let sale = path.trim_end_matches("/orders");
    let head = format!("GET {sale} HTTP/1.1\r\nhost: t\r\n\r\n");
    let (first, second) = head.split_at(20);
    let mut connection = connect(running.buyers.unwrap()).await;
    for (nth, parts) in [
        vec![head.clone()],
        vec![head.clone()],
        vec![first.to_owned(), second.to_owned()],
        // Two answers are due for these: the second head is whole only after the silence.
        vec![format!("{head}{first}"), second.to_owned()],
        vec![head.clone()],
    ]
    .into_iter()
    .enumerate()
    {
        let answers = if nth == 3 { 2 } else { 1 };
        for part in &parts {
            connection.write_all(part.as_bytes()).await.unwrap();
            tokio::time::sleep(PARKED).await;
        }
        for _ in 0..answers {
            let answer = response(&mut connection).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{nth}: {answer}");
        }
    }
    running.stop().await;
}

/// A request that is refused before its body has come: what comes later is that body, whatever it looks like.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_refused_body_is_no_request() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let inner = format!("GET {} HTTP/1.1\r\nhost: t\r\n\r\n", path.trim_end_matches("/orders"));
    let head = format!("POST {path} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", inner.len());
    let mut connection = connect(running.buyers.unwrap()).await;
    let answer = ask(&mut connection, &head).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "without a token: {answer}");
    tokio::time::sleep(PARKED).await;
    // The connection may have been closed.
    let _ = connection.write_all(inner.as_bytes()).await;
    let mut rest = String::new();
    let _ = tokio::time::timeout(Duration::from_secs(2), connection.read_to_string(&mut rest)).await;
    assert_eq!(rest, "", "the body was taken for a request");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_that_stops_closes_silent_connections() {
    let (_world, running, path) = with_open_sale(&["front.header_within_ms=60000"]).await;
    let head = format!("GET {} HTTP/1.1\r\nhost: t\r\n\r\n", path.trim_end_matches("/orders"));
    let mut silent = connect(running.buyers.unwrap()).await;
    assert!(ask(&mut silent, &head).await.starts_with("HTTP/1.1 200"));
    tokio::time::sleep(PARKED).await;
    tokio::time::timeout(Duration::from_secs(5), running.stop())
        .await
        .expect("it stops without waiting for it");
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "a silent connection was kept open");
}
