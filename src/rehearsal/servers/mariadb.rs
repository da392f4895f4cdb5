//! A private MariaDB.

use std::path::Path;
use std::time::Duration;

use super::command::Command;
use super::error::ServerError;
use super::proc::end_leftover;
use super::server::{Kind, Server};
use super::{folder, ports, programs};

/// How long `mariadb-install-db` may take; the same limit applies to the start.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Starts MariaDB on the data in `home`, which is initialised if new. Returns when the server sends its greeting.
pub(super) async fn start(home: &Path) -> Result<Server, ServerError> {
    let mariadbd = programs::find("mariadbd", "mariadb-server")?;
    folder::private(home)?;
    end_leftover(home).await;
    let data = home.join("data");
    let root = rustix::process::geteuid().is_root().then(|| "--user=root".to_owned());
    initialise(home, &data, root.clone()).await?;
    let port = ports::free()?;
    let mut args = vec![
        "--no-defaults".into(),
        format!("--datadir={}", data.display()),
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        // A socket's path is limited to about 100 characters, so its name is as short as possible.
        format!("--socket={}", home.join("s").display()),
        format!("--pid-file={}", home.join("mariadb.pid").display()),
        "--skip-name-resolve".into(),
        "--max-connections=300".into(),
        "--character-set-server=utf8mb4".into(),
    ];
    args.extend(root);
    let child =
        Command { name: "mariadbd", program: &mariadbd, args, env: Vec::new(), home, user: None }.spawn()?;
    // The server speaks first, with a packet of protocol version 10.
    let ready = |answer: &[u8]| answer.get(4) == Some(&10);
    ports::until_ready(&child, &ports::Greeting { port, bytes: b"", ready }, READY_WITHIN).await?;
    let url = format!("mysql://root@127.0.0.1:{port}/mysql");
    Ok(Server { kind: Kind::Mariadb, url, child, helpers: Vec::new(), control: None })
}

async fn initialise(home: &Path, data: &Path, root: Option<String>) -> Result<(), ServerError> {
    if data.join("mysql").exists() {
        return Ok(());
    }
    let (name, mut args) = (
        "mariadb-install-db",
        vec![
            "--no-defaults".into(),
            format!("--datadir={}", data.display()),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
        ],
    );
    args.extend(root);
    let program = programs::find(name, "mariadb-server")?;
    let init = Command { name, program: &program, args, env: Vec::new(), home, user: None }.spawn()?;
    if tokio::time::timeout(READY_WITHIN, init.ended()).await.is_err() || !data.join("mysql").exists() {
        return Err(init.not_started("mariadb-install-db did not finish"));
    }
    Ok(())
}
