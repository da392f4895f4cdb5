//! Free ports, and knowing when somebody listens on one.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Child, DevError};

/// A port that was free a moment ago, chosen by the kernel.
pub(super) fn free() -> Result<u16, DevError> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(DevError::io("asking for a free port"))?;
    Ok(listener.local_addr().map_err(DevError::io("asking for a free port"))?.port())
}

/// Waits until the server answers `greeting` with something that `ready` accepts. Fails at once
/// when the child has ended.
pub(super) async fn until_ready(
    child: &Child,
    port: u16,
    greeting: &[u8],
    ready: fn(&[u8]) -> bool,
    limit: Duration,
) -> Result<(), DevError> {
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
