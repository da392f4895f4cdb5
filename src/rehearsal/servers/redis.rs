//! A private redis-server (or valkey-server), set to keep every promise: nothing evicted, every
//! write on disk before it is answered.

use std::path::Path;
use std::time::Duration;

use super::child::{Command, end_leftover};
use super::{Kind, Server, ServerError, folder, ports, programs};

pub(super) async fn start(home: &Path) -> Result<Server, ServerError> {
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
    let child = Command {
        name: "redis-server",
        program: &program,
        args: vec![file.display().to_string()],
        env: Vec::new(),
        home,
        user: None,
    }
    .spawn()?;
    let ready = |answer: &[u8]| answer.starts_with(b"+PONG");
    ports::until_ready(&child, port, b"PING\r\n", ready, Duration::from_secs(60)).await?;
    let url = format!("redis://127.0.0.1:{port}");
    Ok(Server { kind: Kind::Redis, url, child, helpers: Vec::new(), control: None })
}
