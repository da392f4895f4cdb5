//! A plain HTTP/1.1 client with one connection, which it reopens when it breaks.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// How long one answer may take: longer than any deadline of the server.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request has no answer. The request may have been carried out, except after [`HttpError::Request`].
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("no answer within {TIMEOUT:?}")]
    TimedOut,
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The request itself is malformed: nothing was sent.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
}

/// Status and body.
pub(super) type Answer = (StatusCode, Bytes);

pub(super) struct Connection {
    address: SocketAddr,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Connects on the first request.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    pub(super) async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        self.send(Method::POST, path, headers, body).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Answer, HttpError> {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, HttpError> {
        let mut request = Request::builder().method(method).uri(path).header("host", "doorbuster");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body))?;
        let result = tokio::time::timeout(TIMEOUT, self.exchange(request)).await;
        let result = result.unwrap_or(Err(HttpError::TimedOut));
        if result.is_err() {
            // A half-read response makes the connection unusable.
            self.open = None;
        }
        result
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, HttpError> {
        let sender = match &mut self.open {
            Some(sender) if !sender.is_closed() => sender,
            slot => slot.insert(connect(self.address).await?),
        };
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, body))
    }
}

/// The head of the response to a GET on a connection of its own, and its body as it comes.
pub(super) async fn open(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, String)],
) -> Result<(StatusCode, Incoming), HttpError> {
    let mut request = Request::builder().uri(path).header("host", "doorbuster");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Full::default())?;
    let response = async { Ok(connect(address).await?.send_request(request).await?) };
    let response = tokio::time::timeout(TIMEOUT, response).await.unwrap_or(Err(HttpError::TimedOut))?;
    Ok((response.status(), response.into_body()))
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let stream = TcpStream::connect(address).await?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // If the connection breaks, the next request notices.
        let _ = connection.await;
    });
    Ok(sender)
}
