//! Sending a webhook.

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::{Method, Request, StatusCode, Uri};

use super::addresses::is_private;
use super::secret::{Secret, Signed};
use crate::link::{PostError, Poster, Reach};

/// How long an endpoint may take to answer.
const WITHIN: Duration = Duration::from_secs(10);

/// To public addresses alone.
const OUTSIDE: Reach = Reach {
    allows: |address| !is_private(address),
    otherwise: "leads to a private address alone; set webhooks.allow_private if endpoints are in your own network",
};

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
#[error(transparent)]
pub struct NotDelivered(#[from] PostError);

impl NotDelivered {
    /// Whether the endpoint says that it is gone for good.
    pub fn is_gone(&self) -> bool {
        matches!(self.0, PostError::Status(StatusCode::GONE))
    }
}

/// Sends events to endpoints. Clones share the connections.
#[derive(Clone)]
pub struct Sender(Poster);

impl Sender {
    /// Connects to nothing yet.
    pub fn new(allow_private: bool) -> Self {
        Self(Poster::new(if allow_private { Reach::EVERYWHERE } else { OUTSIDE }))
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
            .body(Full::from(event.body.to_owned()))
            .map_err(PostError::from)?;
        Ok(self.0.send(request, WITHIN).await?)
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
