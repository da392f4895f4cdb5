//! The running stack that a drill is sent to.

use std::net::{SocketAddr, ToSocketAddrs as _};

use super::args::Args;
use crate::cli::ended::Failed;
use crate::front::Signer;
use crate::process::{Config, Sources};
use crate::rehearsal::drill::{Followers, Target, payment_secret};
use crate::rehearsal::judge::History;

/// `None` if the drill is to run on a private stack.
pub(super) fn target(sources: &Sources, args: &Args) -> Result<Option<Target>, Failed> {
    let (Some(url), Some(operations)) = (&args.url, &args.operations) else { return Ok(None) };
    let config = Config::load(sources)?;
    Ok(Some(Target {
        buyers: address(url)?,
        operations: address(operations)?,
        tokens: Signer::new(config.auth()),
        payment_secret: payment_secret(&config.auth.secret),
        history: History::none(),
        followers: Followers::default(),
    }))
}

fn address(text: &str) -> Result<SocketAddr, Failed> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    bare.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| Failed::Usage(format!("{text} is not the HOST:PORT of a host that can be found")))
}
