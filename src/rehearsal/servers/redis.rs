//! A private redis-server (or valkey-server) with the settings that Doorbuster's promises need: nothing is
//! evicted, and every write is on disk before it is answered.

use std::path::Path;
use std::time::Duration;

use super::command::Command;
use super::error::ServerError;
use super::fake_clock::FakeClock;
use super::proc::end_leftover;
use super::server::{Kind, Server};
use super::{folder, ports, programs};

/// How long a start may take; Redis first reads its whole append-only file.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Starts Redis on the data in `home`, with the host's clock or another, and returns when it answers PING.
pub(super) async fn start(home: &Path, clock: Option<&FakeClock>) -> Result<Server, ServerError> {
    let program = programs::find("redis-server", "redis-server")
        .or_else(|_| programs::find("valkey-server", "redis-server"))?;
    folder::private(home)?;
    end_leftover(home).await;
    let port = ports::free()?;
    let settings = format!(
        "bind 127.0.0.1\nport {port}\nprotected-mode yes\ndaemonize no\ndir \"{}\"\n\
         appendonly yes\nappendfsync always\naof-timestamp-enabled yes\nsave \"\"\n\
         auto-aof-rewrite-min-size 512mb\n\
         maxmemory 1gb\nmaxmemory-policy noeviction\n",
        home.display()
    );
    let file = home.join("redis.conf");
    std::fs::write(&file, settings).map_err(ServerError::io("writing redis.conf"))?;
    let args = vec![file.display().to_string()];
    let env = clock.map(FakeClock::env_without_jemalloc).unwrap_or_default();
    let child = Command { name: "redis-server", program: &program, args, env, home, user: None }.spawn()?;
    let ready = |answer: &[u8]| answer.starts_with(b"+PONG");
    let greeting = ports::Greeting { port, bytes: b"PING\r\n", ready };
    ports::until_ready(&child, &greeting, READY_WITHIN).await?;
    let url = format!("redis://127.0.0.1:{port}");
    Ok(Server { kind: Kind::Redis, url, child, helpers: Vec::new(), control: None })
}
