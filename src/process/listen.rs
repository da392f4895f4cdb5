//! Listening for a crowd: how many connections may wait to be accepted, and how many may be open. Each is an open
//! file, and buyers must leave some for Redis and the database.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

use super::config::Config;
use super::parts::StartError;
use crate::front::ServerSettings;

/// Connections that wait to be accepted, capped by `net.core.somaxconn`. The usual 128 fill up the moment a sale
/// opens, and a client that meets a full backlog retries only after a second.
const BACKLOG: u32 = 65_535;

/// Files that a process has open besides the connections of buyers and those to its database.
const OTHERS: u64 = 256;

/// Connections of operators, counted in [`OTHERS`].
const OPERATORS: usize = 128;

pub(super) async fn listen(what: &'static str, address: &str) -> Result<TcpListener, StartError> {
    let listening = async {
        let mut failed = None;
        for at in tokio::net::lookup_host(address).await? {
            match bind(at) {
                Ok(listener) => return Ok(listener),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no address")))
    };
    listening.await.map_err(|source| StartError::Listen { what, address: address.to_owned(), source })
}

fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Otherwise a restarted process would have to wait until the kernel forgets the connections of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Raises the soft limit of open files to the hard limit: the usual 1024 is for programs that use select(). If the
/// kernel refuses, the limit stays as it is.
pub fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // macOS reports no limit, but refuses to set an unlimited one.
    for current in [maximum, Some(10_240)] {
        if setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok() {
            return;
        }
    }
}

pub(super) fn for_operators(config: &Config) -> ServerSettings {
    ServerSettings { name: "operations", connections: OPERATORS, of_address: None, ..config.server() }
}

/// As configured, capped by the open-file limit.
pub(super) fn for_buyers(config: &Config) -> ServerSettings {
    let mut settings = config.server();
    let Some(files) = getrlimit(Resource::Nofile).current else { return settings };
    // With very few files, buyers get half of them.
    let kept = (OTHERS + config.database.connections).min(files / 2);
    let room = usize::try_from(files - kept).unwrap_or(usize::MAX);
    if room < settings.connections {
        tracing::warn!(
            files,
            "front.connections is {}, but the open-file limit has room for {room}: further connections wait; raise \
             the limit (LimitNOFILE of systemd, ulimit -n) or lower the setting",
            settings.connections
        );
        settings.connections = room;
    }
    settings
}
