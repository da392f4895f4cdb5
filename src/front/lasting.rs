//! Answers that last, such as streams of events. hyper reads heads into a buffer of eight kilobytes and keeps it, and the
//! state of its connection, until the answer has ended, which is most of what an open stream would take. So a connection
//! with such an answer is taken from hyper, and written here.

use std::io;
use std::time::SystemTime;

use axum::body::Body;
use axum::http::response::Parts;
use axum::http::{Method, Request, Version};
use axum::response::Response;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

/// Marks an answer whose body lasts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lasts;

/// What a peer may still send, in bytes. It has nothing to say.
const IGNORED: usize = 16 * 1024;

/// Whether an answer to this request may be written here: it has a body, which comes in chunks.
pub(super) fn takes_chunks<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET && request.version() == Version::HTTP_11
}

/// Writes an answer to a request that [`takes_chunks`], until it ends or the peer has closed the connection. The
/// connection is of no further use.
pub(super) async fn write(mut stream: TcpStream, answer: Response) -> io::Result<()> {
    let (parts, mut body) = answer.into_parts();
    let (reader, mut writer) = stream.split();
    writer.write_all(&head(&parts)).await?;
    let gone = gone(reader);
    tokio::pin!(gone);
    loop {
        let chunk = tokio::select! {
            chunk = next(&mut body) => chunk,
            () = &mut gone => return Ok(()),
        };
        writer.write_all(&chunk).await?;
        if chunk == LAST {
            return writer.shutdown().await;
        }
    }
}

const LAST: &[u8] = b"0\r\n\r\n";

/// The next chunk. A body that fails ends like one that has ended: a stream of events is complete after each of them.
async fn next(body: &mut Body) -> Vec<u8> {
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data()
            && !data.is_empty()
        {
            return [format!("{:x}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat();
        }
    }
    LAST.to_vec()
}

fn head(parts: &Parts) -> Vec<u8> {
    let now = httpdate::fmt_http_date(SystemTime::now());
    let mut head = format!("HTTP/1.1 {}\r\ndate: {now}\r\n", parts.status).into_bytes();
    for (name, value) in &parts.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    head
}

/// Waits until the peer has closed its side, or has sent more than it may.
async fn gone(mut reader: ReadHalf<'_>) {
    let (mut ignored, mut bytes) = (0, [0; 64]);
    while let Ok(count @ 1..) = reader.read(&mut bytes).await {
        ignored += count;
        if ignored > IGNORED {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse as _;
    use futures_util::StreamExt as _;
    use futures_util::stream;
    use tokio::net::TcpListener;

    use super::*;

    /// The two ends of a connection.
    async fn ends() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        (near, listener.accept().await.expect("accepted").0)
    }

    fn answer(chunks: &'static [&'static str], lasts: bool) -> Response {
        let chunks = stream::iter(chunks).map(|chunk| Ok::<_, Infallible>(*chunk));
        if lasts {
            return Body::from_stream(chunks.chain(stream::pending())).into_response();
        }
        ([("content-type", "text/event-stream")], Body::from_stream(chunks)).into_response()
    }

    #[tokio::test]
    async fn an_answer_is_written_in_chunks_until_it_ends() {
        let (mut peer, stream) = ends().await;
        write(stream, answer(&["data: a\n\n", "", "data: bcdefghijkl\n\n"], false)).await.expect("written");
        let mut text = String::new();
        peer.read_to_string(&mut text).await.expect("read to its end");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\ndate: "), "{head}");
        for header in ["content-type: text/event-stream", "transfer-encoding: chunked", "connection: close"] {
            assert!(head.lines().any(|line| line == header), "{header}: {head}");
        }
        assert_eq!(body, "9\r\ndata: a\n\n\r\n13\r\ndata: bcdefghijkl\n\n\r\n0\r\n\r\n");
    }

    #[tokio::test]
    async fn it_ends_when_its_peer_goes_away_or_sends_without_end() {
        let (mut peer, stream) = ends().await;
        let writing = tokio::spawn(write(stream, answer(&["data: a\n\n"], true)));
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("ignored");
        let mut some = [0; 16];
        peer.read_exact(&mut some).await.expect("a head");
        assert!(!writing.is_finished());
        drop(peer);
        let _ = writing.await.expect("no panic");

        let (mut peer, stream) = ends().await;
        let writing = tokio::spawn(write(stream, answer(&["data: a\n\n"], true)));
        let _ = peer.write_all(&[b'x'; IGNORED + 1]).await;
        writing.await.expect("no panic").expect("ended");
    }
}
