//! Posting to other systems by HTTP, where only the status of the answer matters.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::error::with_causes;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// How much of an answer is read, so that its connection can be used again. Of a longer one the connection is closed.
const READ: usize = 16 * 1024;

/// Why a request was not answered 2xx. The other side may have got it all the same.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// There was no answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It answered, but not 2xx. A redirect is not followed.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// It could not be reached, or broke off.
    #[error("{0}")]
    Unreachable(String),
    /// The request could not be built.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
}

/// Where a [`Poster`] may go.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// Whether it may connect to an address to which a name leads.
    pub allows: fn(IpAddr) -> bool,
    /// What is said of a name that leads to no address which is allowed, after the name.
    pub otherwise: &'static str,
}

impl Reach {
    /// Anywhere.
    pub const EVERYWHERE: Self = Self { allows: |_| true, otherwise: "leads nowhere" };
}

/// Posts to other systems. Clones share the connections.
#[derive(Clone)]
pub struct Poster(Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>);

impl Poster {
    /// Connects to nothing yet. If this host has no root certificates, nothing with `https:` can be reached.
    pub fn new(reach: Reach) -> Self {
        let tls = rustls::ClientConfig::builder().with_native_roots();
        let tls = tls.unwrap_or_else(|error| {
            tracing::debug!(%error, "this host has no root certificates");
            rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty())
        });
        let tls = tls.with_no_client_auth();
        let mut http = HttpConnector::new_with_resolver(Resolver { reach });
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_WITHIN));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector.wrap_connector(http));
        Self(client)
    }

    /// Sends a request. On `Ok` it was answered 2xx.
    pub async fn send(&self, request: Request<Full<Bytes>>, within: Duration) -> Result<(), PostError> {
        let sending = async {
            let unreachable = |error| PostError::Unreachable(with_causes(&error));
            let answer = self.0.request(request).await.map_err(unreachable)?;
            let status = answer.status();
            // What it says does not matter.
            let _ = Limited::new(answer.into_body(), READ).collect().await;
            if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
        };
        tokio::time::timeout(within, sending).await.unwrap_or(Err(PostError::TimedOut(within)))
    }
}

/// Looks names up, and leaves out addresses that are not allowed. A name is looked up for each connection, and the connection
/// goes to the address that was checked.
#[derive(Clone)]
struct Resolver {
    reach: Reach,
}

/// A name leads to no address that is allowed.
#[derive(Debug, thiserror::Error)]
#[error("{name} {otherwise}")]
struct OutOfReach {
    name: String,
    otherwise: &'static str,
}

type Resolved = Result<std::vec::IntoIter<SocketAddr>, Box<dyn Error + Send + Sync>>;

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Resolved> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Reach { allows, otherwise } = self.reach;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.filter(|address| allows(address.ip())).collect();
            if found.is_empty() {
                return Err(OutOfReach { name: name.to_string(), otherwise }.into());
            }
            Ok(found.into_iter())
        })
    }
}
