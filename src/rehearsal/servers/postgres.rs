//! A private PostgreSQL. It refuses to run as root: then it runs as `postgres`, in a folder that
//! this user can enter.

use std::path::Path;
use std::time::Duration;

use super::child::{Command, end_leftover};
use super::{Kind, Server, ServerError, folder, ports, programs};

const LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn start(home: &Path) -> Result<Server, ServerError> {
    let (initdb, postgres) = (programs::postgres("initdb")?, programs::postgres("postgres")?);
    folder::private(home)?;
    end_leftover(home).await;
    let user = rustix::process::geteuid().is_root().then_some("postgres");
    if let Some(user) = user {
        give_to(user, home)?;
    }
    let data = home.join("data");
    let text = |path: &Path| path.display().to_string();
    if !data.join("PG_VERSION").exists() {
        let args = ["-U", "doorbuster", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N", "-D"];
        let args = args.into_iter().map(str::to_owned).chain([text(&data)]).collect();
        let init = Command { name: "initdb", program: &initdb, args, env: Vec::new(), home, user }.spawn()?;
        if tokio::time::timeout(LIMIT, init.ended()).await.is_err() || !data.join("global").exists() {
            return Err(init.not_started("initdb did not finish"));
        }
    }
    let port = ports::free()?;
    let mut args = vec!["-D".to_owned(), text(&data)];
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
    // A startup packet of protocol 3.0 for the user and database `doorbuster`/`postgres`; ready is
    // an authentication request (R), not an error (E: still starting).
    let mut greeting = b"\x00\x00\x00\x00\x00\x03\x00\x00user\0doorbuster\0database\0postgres\0\0".to_vec();
    let length = u32::try_from(greeting.len()).unwrap_or(0);
    greeting[..4].copy_from_slice(&length.to_be_bytes());
    let ready = |answer: &[u8]| answer.first() == Some(&b'R');
    ports::until_ready(&child, port, &greeting, ready, LIMIT).await?;
    let url = format!("postgres://doorbuster@127.0.0.1:{port}/postgres");
    Ok(Server { kind: Kind::Postgres, url, child, helpers: Vec::new(), control: None })
}

/// The user owns its folder, and may pass through those above that are ours alone.
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
