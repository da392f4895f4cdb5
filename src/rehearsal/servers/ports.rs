//! Free ports, and knowing when somebody listens on one.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;
use std::time::Duration;

use rand::RngExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Child, ServerError};

/// A port that is free, of those from which the kernel takes none for outgoing connections: a server binds it
/// seconds later. Until then, and as long as this process lives, no other Doorbuster is given it, nor is this
/// one: its UDP twin, which no server uses, is held.
pub fn free() -> Result<u16, ServerError> {
    static GIVEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    for _ in 0..100 {
        let port = rand::rng().random_range(20_000..32_000);
        let Ok(twin) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            GIVEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(twin);
            return Ok(port);
        }
    }
    let none = std::io::Error::new(std::io::ErrorKind::AddrInUse, "100 tries between 20000 and 32000");
    Err(ServerError::io("looking for a free port")(none))
}

/// Waits until the server answers `greeting` with something that `ready` accepts. Fails at once
/// when the child has ended.
pub(super) async fn until_ready(
    child: &Child,
    port: u16,
    greeting: &[u8],
    ready: fn(&[u8]) -> bool,
    limit: Duration,
) -> Result<(), ServerError> {
    let asking = async {
        loop {
            if let Ok(Ok(true)) =
                tokio::time::timeout(Duration::from_secs(1), greets(port, greeting, ready)).await
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = asking => Ok(()),
        () = child.ended() => Err(child.not_started("it ended at once")),
        () = tokio::time::sleep(limit) => Err(child.not_started(&format!("no answer within {limit:?}"))),
    }
}

async fn greets(port: u16, greeting: &[u8], ready: fn(&[u8]) -> bool) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(greeting).await?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).await?;
    Ok(ready(&answer[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By chance alone, five hundred of twelve thousand meet ten times.
    #[test]
    fn no_port_is_given_twice() {
        let ports: std::collections::BTreeSet<u16> = (0..500).map(|_| free().expect("a free port")).collect();
        assert_eq!(ports.len(), 500);
    }
}
