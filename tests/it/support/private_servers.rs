//! Proxies and private servers, for tests whose faults would disturb others on the shared servers.

use std::path::Path;

use doorbuster::rehearsal::chaos::Proxy;
use doorbuster::rehearsal::servers::{Kind, Server};

use super::World;

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
