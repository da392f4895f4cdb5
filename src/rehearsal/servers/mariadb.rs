//! A private MariaDB.

use std::path::Path;
use std::time::Duration;

use super::child::{Command, end_leftover};
use super::{Kind, Server, ServerError, folder, ports, programs};

const LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn start(home: &Path) -> Result<Server, ServerError> {
    let install = programs::find("mariadb-install-db", "mariadb-server")?;
    let mariadbd = programs::find("mariadbd", "mariadb-server")?;
    folder::private(home)?;
    end_leftover(home).await;
    let data = home.join("data");
    let root = rustix::process::geteuid().is_root().then(|| "--user=root".to_owned());
    if !data.join("mysql").exists() {
        let mut args = vec![
            "--no-defaults".into(),
            format!("--datadir={}", data.display()),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
        ];
        args.extend(root.clone());
        let init = Command {
            name: "mariadb-install-db",
            program: &install,
            args,
            env: Vec::new(),
            home,
            user: None,
        }
        .spawn()?;
        if tokio::time::timeout(LIMIT, init.ended()).await.is_err() || !data.join("mysql").exists() {
            return Err(init.not_started("mariadb-install-db did not finish"));
        }
    }
    let port = ports::free()?;
    let mut args = vec![
        "--no-defaults".into(),
        format!("--datadir={}", data.display()),
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        // Socket paths may have about 100 characters, so it lies as near as possible.
        format!("--socket={}", home.join("s").display()),
        format!("--pid-file={}", home.join("mariadb.pid").display()),
        "--skip-name-resolve".into(),
        "--max-connections=300".into(),
        "--character-set-server=utf8mb4".into(),
    ];
    args.extend(root);
    let child =
        Command { name: "mariadbd", program: &mariadbd, args, env: Vec::new(), home, user: None }.spawn()?;
    // The server speaks first: a packet of protocol version 10.
    let ready = |answer: &[u8]| answer.get(4) == Some(&10);
    ports::until_ready(&child, port, b"", ready, LIMIT).await?;
    let url = format!("mysql://root@127.0.0.1:{port}/mysql");
    Ok(Server { kind: Kind::Mariadb, url, child, helpers: Vec::new(), control: None })
}
