//! Free ports, and waiting until a server answers on one.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;
use std::time::Duration;

use rand::RngExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::child::Child;
use super::error::ServerError;

/// A free TCP port of 127.0.0.1, for a server that binds it seconds later. It lies outside the range that the kernel
/// uses for outgoing connections. While this process lives, this function gives no other Doorbuster process the same
/// port: the port's UDP twin, which no server uses, stays bound.
pub fn free() -> Result<u16, ServerError> {
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    for _ in 0..100 {
        let port = rand::rng().random_range(20_000..32_000);
        let Ok(twin) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(twin);
            return Ok(port);
        }
    }
    let none = std::io::Error::new(std::io::ErrorKind::AddrInUse, "100 tries between 20000 and 32000");
    Err(ServerError::io("looking for a free port")(none))
}

/// The bytes sent to a starting server, and how to recognise its answer.
pub(super) struct Greeting<'a> {
    pub(super) port: u16,
    /// Empty if the server speaks first.
    pub(super) bytes: &'a [u8],
    pub(super) ready: fn(&[u8]) -> bool,
}

/// Waits until the server's answer to `greeting` counts as ready. Fails when the child ends or `limit` has passed.
pub(super) async fn until_ready(
    child: &Child,
    greeting: &Greeting<'_>,
    limit: Duration,
) -> Result<(), ServerError> {
    let asking = async {
        loop {
            if let Ok(Ok(true)) = tokio::time::timeout(Duration::from_secs(1), greeting.is_answered()).await {
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

impl Greeting<'_> {
    async fn is_answered(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        stream.write_all(self.bytes).await?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await?;
        Ok((self.ready)(&answer[..length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five hundred random draws out of twelve thousand would collide about ten times.
    #[test]
    fn no_port_is_given_twice() {
        let ports: std::collections::BTreeSet<u16> = (0..500).map(|_| free().expect("a free port")).collect();
        assert_eq!(ports.len(), 500);
    }
}
