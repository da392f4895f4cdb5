//! Sending a webhook.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::addresses::is_private;
use super::secret::{Secret, Signed};
use crate::link::with_causes;

/// How long an endpoint may take to answer.
const WITHIN: Duration = Duration::from_secs(10);

/// How much of an answer is read, so that its connection can be used again. Of a longer one the connection is closed.
const READ: usize = 16 * 1024;

/// An URL that no endpoint can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// It is not an absolute URL with a host.
    #[error("it must be a URL such as https://shop.example/webhooks, of at most 500 characters")]
    Invalid,
    /// It names a user and a password.
    #[error("it must not contain a name or password; deliveries are signed instead")]
    Credentials,
    /// It is not `https:`.
    #[error(
        "it must begin with https:, or else anybody on the way could read and forge events; webhooks.allow_private allows \
         http: in your own network"
    )]
    NotHttps,
    /// Its host is an address that is not public.
    #[error("its address is private; set webhooks.allow_private if endpoints are in your own network")]
    Private,
}

/// Where an endpoint is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl(Uri);

impl EndpointUrl {
    /// Parses a URL. Unless `allow_private`, it must be `https:`, and its host no private address; what a host's name leads
    /// to is checked when something is sent.
    pub fn parse(text: &str, allow_private: bool) -> Result<Self, BadUrl> {
        let uri: Uri = text.parse().map_err(|_| BadUrl::Invalid)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadUrl::Invalid)?;
        if text.len() > 500 || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(BadUrl::Invalid);
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(BadUrl::Credentials);
        }
        if allow_private {
            return Ok(Self(uri));
        }
        if uri.scheme_str() != Some("https") {
            return Err(BadUrl::NotHttps);
        }
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.is_ok_and(is_private) {
            return Err(BadUrl::Private);
        }
        Ok(Self(uri))
    }
}

/// Why an endpoint did not take an event. It may have got it all the same.
#[derive(Debug, thiserror::Error)]
pub enum NotDelivered {
    /// There was no answer in time.
    #[error("no answer within {WITHIN:?}")]
    TimedOut,
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

impl NotDelivered {
    /// Whether the endpoint says that it is gone for good.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Status(status) if *status == StatusCode::GONE)
    }
}

/// Sends events to endpoints. Clones share the connections.
#[derive(Clone)]
pub struct Sender(Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>);

impl Sender {
    /// Connects to nothing yet. If this host has no root certificates, no endpoint with `https:` can be reached.
    pub fn new(allow_private: bool) -> Self {
        let tls = rustls::ClientConfig::builder().with_native_roots();
        let tls = tls.unwrap_or_else(|error| {
            tracing::debug!(%error, "this host has no root certificates for webhooks");
            rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty())
        });
        let tls = tls.with_no_client_auth();
        let mut http = HttpConnector::new_with_resolver(Resolver { allow_private });
        http.enforce_http(false);
        http.set_connect_timeout(Some(WITHIN / 2));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector.wrap_connector(http));
        Self(client)
    }

    /// Sends an event, signed with each of these secrets. On `Ok` the endpoint has answered 2xx. On an error it may have
    /// got it: send it again with the same id.
    pub async fn send(
        &self,
        url: &EndpointUrl,
        secrets: &[Secret],
        event: Signed<'_>,
    ) -> Result<(), NotDelivered> {
        let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(event)).collect();
        let request = Request::builder()
            .method(Method::POST)
            .uri(url.0.clone())
            .header("content-type", "application/json")
            .header("user-agent", concat!("Doorbuster/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", event.id)
            .header("webhook-timestamp", event.timestamp)
            .header("webhook-signature", signatures.join(" "))
            .body(Full::from(event.body.to_owned()))?;
        let sending = async {
            let unreachable = |error| NotDelivered::Unreachable(with_causes(&error));
            let answer = self.0.request(request).await.map_err(unreachable)?;
            let status = answer.status();
            // What it says does not matter.
            let _ = Limited::new(answer.into_body(), READ).collect().await;
            if status.is_success() { Ok(()) } else { Err(NotDelivered::Status(status)) }
        };
        tokio::time::timeout(WITHIN, sending).await.unwrap_or(Err(NotDelivered::TimedOut))
    }
}

/// Looks names up, and leaves out addresses that are not public. A name is looked up for each connection, and the connection
/// goes to the address that was checked.
#[derive(Clone)]
struct Resolver {
    allow_private: bool,
}

/// A name leads to private addresses alone.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} leads to a private address alone; set webhooks.allow_private if endpoints are in your own network"
)]
struct OnlyPrivate(String);

type Resolved = Result<std::vec::IntoIter<SocketAddr>, Box<dyn Error + Send + Sync>>;

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Resolved> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> =
                found.filter(|address| allow_private || !is_private(address.ip())).collect();
            if found.is_empty() {
                return Err(OnlyPrivate(name.to_string()).into());
            }
            Ok(found.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_lead_inwards_are_refused() {
        let parse = |url| EndpointUrl::parse(url, false).err();
        assert_eq!(parse("https://shop.example/hooks"), None);
        assert_eq!(parse("https://127.0.0.1/"), Some(BadUrl::Private));
        assert_eq!(parse("https://[::1]:8443/"), Some(BadUrl::Private));
        assert_eq!(parse("https://169.254.169.254/latest/meta-data"), Some(BadUrl::Private));
        assert_eq!(parse("http://shop.example/"), Some(BadUrl::NotHttps));
        assert_eq!(parse("https://ada:secret@shop.example/"), Some(BadUrl::Credentials));
        for invalid in ["shop.example", "/hooks", "ftp://shop.example/", "https://", ""] {
            assert_eq!(parse(invalid), Some(BadUrl::Invalid), "{invalid}");
        }
        assert!(EndpointUrl::parse("http://127.0.0.1:8080/", true).is_ok());
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_host_is_not_connected_to() {
        let sender = Sender::new(false);
        let url = EndpointUrl::parse("https://localhost:1/", false).expect("a name, not an address");
        let event = Signed { id: "1", timestamp: 1, body: "{}" };
        let error = sender.send(&url, &[], event).await.expect_err("private").to_string();
        assert!(error.contains("private address"), "{error}");
    }
}
