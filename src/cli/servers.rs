//! `servers`: private servers for a test run. They live until standard input closes, so they end even if the test run
//! at the other end of the pipe is killed.

use std::collections::BTreeMap;
use std::io::Read as _;

use super::ended::{Ended, Failed};
use crate::process::{log, signal};
use crate::rehearsal::servers::{Ending, Folder, Kind, Server};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(required = true, value_enum)]
    kinds: Vec<Kind>,
}

pub(super) async fn run(args: Args) -> Result<Ended, Failed> {
    log::start_with("text", "warn");
    let stop = signal::stop_token();
    let folder = Folder::ephemeral()?;
    let starting = args.kinds.iter().map(|kind| Server::start(*kind, folder.path()));
    let servers = futures_util::future::try_join_all(starting).await?;
    let started: BTreeMap<&str, serde_json::Value> = servers
        .iter()
        .map(|server| (server.kind.name(), serde_json::json!({ "url": server.url, "pid": server.pid() })))
        .collect();
    say!("{}", serde_json::json!(started));
    let (open, closed) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Returns at end of input; no data is expected.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(open);
    });
    let _ = stop.run_until_cancelled(closed).await;
    futures_util::future::join_all(servers.into_iter().map(|server| server.stop(Ending::AtOnce))).await;
    Ok(Ended::Done)
}
