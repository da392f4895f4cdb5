//! A private PostgreSQL. It refuses to run as root, so root starts it as the user `postgres`, in a folder that this
//! user can enter.

use std::path::Path;
use std::time::Duration;

use super::command::Command;
use super::error::ServerError;
use super::proc::end_leftover;
use super::server::{Kind, Server};
use super::{folder, ports, programs};

/// How long `initdb` may take; the same limit applies to the start.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Starts PostgreSQL on the data in `home`, which is initialised if new. Returns when the server asks for
/// authentication.
pub(super) async fn start(home: &Path) -> Result<Server, ServerError> {
    let postgres = programs::postgres("postgres")?;
    folder::private(home)?;
    end_leftover(home).await;
    let user = rustix::process::geteuid().is_root().then_some("postgres");
    if let Some(user) = user {
        give_to(user, home)?;
    }
    let data = home.join("data");
    initialise(home, &data, user).await?;
    let port = ports::free()?;
    let mut args = vec!["-D".to_owned(), data.display().to_string()];
    for setting in [
        "listen_addresses=127.0.0.1",
        &format!("port={port}"),
        "unix_socket_directories=",
        "max_connections=300",
    ] {
        args.extend(["-c".to_owned(), setting.to_owned()]);
    }
    let child =
        Command { name: "postgres", program: &postgres, args, env: Vec::new(), home, user }.spawn()?;
    // A startup packet of protocol 3.0 for the user `doorbuster` and the database `postgres`. A ready server
    // replies with an authentication request (R), a starting one with an error (E).
    let mut packet = b"\x00\x00\x00\x00\x00\x03\x00\x00user\0doorbuster\0database\0postgres\0\0".to_vec();
    let length = u32::try_from(packet.len()).unwrap_or(0);
    packet[..4].copy_from_slice(&length.to_be_bytes());
    let ready = |answer: &[u8]| answer.first() == Some(&b'R');
    ports::until_ready(&child, &ports::Greeting { port, bytes: &packet, ready }, READY_WITHIN).await?;
    let url = format!("postgres://doorbuster@127.0.0.1:{port}/postgres");
    Ok(Server { kind: Kind::Postgres, url, child, helpers: Vec::new(), control: None })
}

async fn initialise(home: &Path, data: &Path, user: Option<&'static str>) -> Result<(), ServerError> {
    if data.join("PG_VERSION").exists() {
        return Ok(());
    }
    let initdb = programs::postgres("initdb")?;
    let args = ["-U", "doorbuster", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N", "-D"];
    let args = args.into_iter().map(str::to_owned).chain([data.display().to_string()]).collect();
    let init = Command { name: "initdb", program: &initdb, args, env: Vec::new(), home, user }.spawn()?;
    if tokio::time::timeout(READY_WITHIN, init.ended()).await.is_err() || !data.join("global").exists() {
        return Err(init.not_started("initdb did not finish"));
    }
    Ok(())
}

/// Makes `user` the owner of the folder, and gives them access through the private folder above it.
fn give_to(user: &'static str, home: &Path) -> Result<(), ServerError> {
    let run = |program: &str, args: &[&str]| {
        let done = std::process::Command::new(program).args(args).arg(home).status();
        done.map_err(ServerError::io(format!("{program} {}", home.display()))).map(|_| ())
    };
    run("chown", &["-R", &format!("{user}:")])?;
    if let Some(above) = home.parent() {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o711))
            .map_err(ServerError::io(format!("opening {} for {user}", above.display())))?;
    }
    Ok(())
}
