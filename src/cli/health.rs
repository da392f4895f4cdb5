//! `health`: one request to /readyz, for containers without curl.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::ended::{Ended, Failed};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The operations listener of the process.
    #[arg(default_value = "127.0.0.1:9090")]
    address: String,
}

pub(super) async fn run(args: &Args) -> Result<Ended, Failed> {
    let failed = |why: String| Failed::Other(format!("{}: {why}", args.address));
    let asking = async {
        let mut stream = TcpStream::connect(&args.address).await?;
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", args.address);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(3), asking)
        .await
        .map_err(|_| failed("no answer within 3 s".into()))?
        .map_err(|error| failed(error.to_string()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    say!("{body}");
    if head.starts_with("HTTP/1.1 200") { Ok(Ended::Done) } else { Err(failed("not ready".into())) }
}
