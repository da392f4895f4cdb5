//! A plain HTTP/1.1 client: one connection that is opened again when it breaks.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::DrillError;

/// How long one answer may take: longer than any deadline of the server's.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    address: SocketAddr,
    open: Option<SendRequest<Full<Bytes>>>,
}

/// What came back, or why nothing did.
pub(super) type Got = Result<(StatusCode, Bytes), String>;

impl Connection {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    pub(super) async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Got {
        self.send(Method::POST, path, headers, body).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Got {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Got {
        let mut request = Request::builder().method(method).uri(path).header("host", "doorbuster");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let result = tokio::time::timeout(PATIENCE, self.exchange(request)).await;
        let result = result.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        if result.is_err() {
            // What is half read cannot be used again.
            self.open = None;
        }
        result
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Got {
        let sender = match &mut self.open {
            Some(sender) if !sender.is_closed() => sender,
            slot => slot.insert(connect(self.address).await?),
        };
        sender.ready().await.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, body))
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // Its end shows at the next request.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The admin API, with an operator's token.
pub(super) struct Admin {
    address: SocketAddr,
    bearer: String,
}

impl Admin {
    pub(super) fn new(address: SocketAddr, token: String) -> Self {
        Self { address, bearer: format!("Bearer {token}") }
    }

    pub(super) async fn get(&self, path: &str) -> Result<serde_json::Value, DrillError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(
        &self,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<serde_json::Value, DrillError> {
        self.call(Method::POST, path, body.map(|body| body.to_string().into()).unwrap_or_default()).await
    }

    /// An act with a key: whatever was answered, or why nothing was.
    pub(super) async fn act(
        &self,
        path: &str,
        key: &str,
        body: &serde_json::Value,
    ) -> Result<(StatusCode, serde_json::Value), String> {
        let headers = [("authorization", self.bearer.as_str()), ("idempotency-key", key)];
        let mut connection = Connection::new(self.address);
        let (status, body) = connection.post(path, &headers, body.to_string().into()).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<serde_json::Value, DrillError> {
        let failed =
            |why: String| DrillError::Call { call: format!("{method} http://{}{path}", self.address), why };
        let headers = [("authorization", self.bearer.as_str())];
        let mut connection = Connection::new(self.address);
        let (status, body) = connection.send(method.clone(), path, &headers, body).await.map_err(failed)?;
        if !status.is_success() {
            return Err(failed(format!("{status}: {}", String::from_utf8_lossy(&body))));
        }
        serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
    }
}
