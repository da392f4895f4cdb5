//! Proxies and private servers, for tests whose faults would disturb others on the shared servers.

use std::path::Path;
use std::time::Duration;

use doorbuster::gate::Gate;
use doorbuster::rehearsal::chaos::Proxy;
use doorbuster::rehearsal::servers::{Kind, Server};

use super::{World, until};

/// Routes later connections to a server through a proxy. `key` names the setting with its URL.
pub async fn behind_proxy(world: &mut World, key: &str) -> Proxy {
    let proxy = Proxy::open().await.unwrap();
    let pair =
        world.overrides.iter().rev().find(|pair| pair.starts_with(&format!("{key}="))).expect("set").clone();
    let url = pair.split_once('=').expect("a pair").1;
    let address = url.split(['/', '@']).find(|part| part.parse::<std::net::SocketAddr>().is_ok());
    let address = address.expect("an address");
    proxy.point_to(vec![address.parse().unwrap()]);
    let url = url.replacen(address, &proxy.address().to_string(), 1);
    world.set(&format!("{key}={url}"));
    proxy
}

/// Starts a Redis for this test alone.
pub async fn private_redis(world: &mut World, folder: &Path) -> Server {
    let server = Server::start(Kind::Redis, folder).await.expect("a private Redis");
    world.set(&format!("redis.url={}", server.url));
    server
}

/// Sends one command, with its words separated by spaces.
pub async fn ask_redis<T: redis::FromRedisValue>(url: &str, command: &str) -> T {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut words = command.split(' ');
    let mut ask = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        ask.arg(word);
    });
    ask.query_async(&mut connection).await.unwrap()
}

/// Waits until what Redis writes next has a later second than the one returned: `roll_redis_back` to that second keeps
/// what was written before this call, and nothing after it.
pub async fn redis_second(gate: &Gate) -> i64 {
    let second = async || gate.clock().await.unwrap().0 / 1_000;
    let before = second().await;
    until("the next second but one", Duration::from_secs(30), async || {
        (second().await > before + 1).then_some(())
    })
    .await;
    before
}

/// Cuts off what the stopped Redis in `folder` wrote after `second`. Its append-only file has a timestamp for each second
/// with a write.
pub fn roll_redis_back(folder: &Path, second: i64) {
    let files = std::fs::read_dir(folder.join("redis/appendonlydir")).unwrap().flatten();
    let manifest = files.map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with("manifest"));
    let cut = std::process::Command::new("redis-check-aof")
        .args(["--truncate-to-timestamp", &second.to_string()])
        .arg(manifest.expect("a manifest"))
        .output()
        .expect("redis-check-aof runs");
    let printed = String::from_utf8_lossy(&cut.stdout).into_owned();
    assert!(cut.status.success() && printed.contains("Successfully truncated"), "{printed}");
}
