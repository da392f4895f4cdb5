//! Listening for a crowd: how many wait to be let in, and how many can be, since each connection is an open
//! file, and those that buyers take are missing for Redis and the database.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

use super::config::Config;
use super::parts::StartError;
use crate::front::ServerSettings;

/// Connections that wait to be accepted, or what `net.core.somaxconn` has room for. The usual 128 are full in a
/// moment at noon, and whoever is not let in there knocks again after a second.
const BACKLOG: u32 = 65_535;

/// What a process has open besides the connections of buyers and those to its database.
const OTHERS: u64 = 256;

/// Connections of those who operate, among [`OTHERS`].
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
    // Else a process that is started again waits for the connections of the one before to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// The usual soft limit of 1024 is for programs that use select(). Where it cannot be raised it stays.
pub fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // macOS has no limit, and refuses none.
    for current in [maximum, Some(10_240)] {
        if setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok() {
            return;
        }
    }
}

pub(super) fn for_operators(config: &Config) -> ServerSettings {
    ServerSettings { connections: OPERATORS, ..config.server() }
}

/// As configured, with no more connections than there are files for.
pub(super) fn for_buyers(config: &Config) -> ServerSettings {
    let mut settings = config.server();
    let Some(files) = getrlimit(Resource::Nofile).current else { return settings };
    // Where there are very few, buyers get half of them.
    let kept = (OTHERS + config.database.connections).min(files / 2);
    let room = usize::try_from(files - kept).unwrap_or(usize::MAX);
    if room < settings.connections {
        tracing::warn!(
            files,
            "front.connections is {}, and there are open files for {room}: more wait, as beyond \
             front.connections; raise the limit (LimitNOFILE of systemd, ulimit -n) or lower the setting",
            settings.connections
        );
        settings.connections = room;
    }
    settings
}
