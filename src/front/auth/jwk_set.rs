//! The login's published keys: a JWK set (RFC 7517), in a file or at a URL.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::{Response, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

use super::key::Key;
use crate::link::with_causes;

/// The size limit of a set, in bytes.
const LARGEST: usize = 256 * 1024;
/// Keys of one set. A token without a `kid` is tried with each of its algorithm.
const MOST_KEYS: usize = 16;
/// The time limit of one reading.
const WITHIN: Duration = Duration::from_secs(5);

/// Where a JWK set is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwkSetSource {
    /// A file, which is replaced when the keys are rotated.
    File(PathBuf),
    /// An `https:` URL, or an `http:` URL of this host.
    Url(Uri),
}

/// The set cannot be used. The keys that were read before stay in use.
#[derive(Debug, thiserror::Error)]
pub enum JwkSetError {
    /// The setting is neither a path nor such a URL.
    #[error("it must be the path of a file, or an https: URL (http: only for this host)")]
    Source,
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It was read, and is not a JWK set of public keys.
    #[error("it is not a JWK set of public keys for signatures: {0}")]
    Invalid(String),
}

impl JwkSetSource {
    /// Parses the setting; an empty one means none.
    pub fn parse(text: &str) -> Result<Option<Self>, JwkSetError> {
        if text.is_empty() {
            return Ok(None);
        }
        if !text.contains("://") {
            return Ok(Some(Self::File(text.into())));
        }
        let uri: Uri = text.parse().map_err(|_| JwkSetError::Source)?;
        let host = uri.host().ok_or(JwkSetError::Source)?;
        match uri.scheme_str() {
            Some("https") => Ok(Some(Self::Url(uri))),
            // Somebody who changes the keys on their way can sign for everybody.
            Some("http") if ["127.0.0.1", "[::1]", "localhost"].contains(&host) => Ok(Some(Self::Url(uri))),
            _ => Err(JwkSetError::Source),
        }
    }

    /// The set as it is now, and its keys.
    pub(super) async fn read(&self) -> Result<(Vec<u8>, Vec<Key>), JwkSetError> {
        let reading = async {
            match self {
                Self::File(path) => tokio::fs::read(path)
                    .await
                    .map_err(|error| JwkSetError::Unreadable(format!("{}: {error}", path.display()))),
                Self::Url(uri) => fetch(uri).await,
            }
        };
        let read = tokio::time::timeout(WITHIN, reading).await;
        let bytes = read.map_err(|_| JwkSetError::Unreadable(format!("no answer within {WITHIN:?}")))??;
        let keys = public_keys(&bytes)?;
        Ok((bytes, keys))
    }
}

async fn fetch(uri: &Uri) -> Result<Vec<u8>, JwkSetError> {
    let unreadable = JwkSetError::Unreadable;
    if uri.scheme_str() == Some("http") {
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        return body_of(client.get(uri.clone()).await).await;
    }
    let tls = rustls::ClientConfig::builder()
        .with_native_roots()
        .map_err(|error| unreadable(format!("this host has no root certificates: {error}")))?
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    body_of(client.get(uri.clone()).await).await
}

async fn body_of(answer: Result<Response<Incoming>, ClientError>) -> Result<Vec<u8>, JwkSetError> {
    let unreadable = JwkSetError::Unreadable;
    let answer = answer.map_err(|error| unreadable(with_causes(&error)))?;
    if !answer.status().is_success() {
        return Err(unreadable(format!("the answer is {}", answer.status())));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    Ok(body.map_err(|error| unreadable(error.to_string()))?.to_bytes().into())
}

/// The keys of a set that can verify tokens. Others, such as keys for encryption or for other algorithms, are skipped:
/// a login may publish them for others.
fn public_keys(bytes: &[u8]) -> Result<Vec<Key>, JwkSetError> {
    let invalid = |why: String| JwkSetError::Invalid(why);
    let set: Value = serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
    let listed =
        set.get("keys").and_then(Value::as_array).ok_or_else(|| invalid("it has no \"keys\"".into()))?;
    let mut keys = Vec::new();
    for value in listed {
        // A secret in a published set is known to everybody.
        if value.get("kty").and_then(Value::as_str) == Some("oct") {
            return Err(invalid("it holds a secret (kty oct)".into()));
        }
        if value.get("d").is_some() {
            return Err(invalid("it holds a private key (d)".into()));
        }
        let Ok(jwk) = serde_json::from_value::<Jwk>(value.clone()) else { continue };
        let Some(algorithm) = algorithm(&jwk) else { continue };
        let key = DecodingKey::from_jwk(&jwk).map_err(|error| invalid(error.to_string()))?;
        keys.push(Key { id: jwk.common.key_id, algorithm, key });
    }
    match keys.len() {
        0 => Err(invalid("it holds no key for EdDSA (Ed25519), ES256 or RS256".into())),
        1..=MOST_KEYS => Ok(keys),
        more => Err(invalid(format!("it holds {more} keys; at most {MOST_KEYS} are used"))),
    }
}

/// The one algorithm that a key is for.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|used_for| *used_for != PublicKeyUse::Signature) {
        return None;
    }
    let (fits, algorithm) = match &jwk.algorithm {
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (KeyAlgorithm::EdDSA, Algorithm::EdDSA)
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (KeyAlgorithm::ES256, Algorithm::ES256)
        }
        AlgorithmParameters::RSA(_) => (KeyAlgorithm::RS256, Algorithm::RS256),
        _ => return None,
    };
    // Since RFC 9864 a set may say "Ed25519" for what was "EdDSA".
    let named = common.key_algorithm.unwrap_or(fits);
    let is_ed25519 = algorithm == Algorithm::EdDSA && named == KeyAlgorithm::UNKNOWN_ALGORITHM;
    (named == fits || is_ed25519).then_some(algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str =
        r#"{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;

    fn ids(keys: &str) -> Result<Vec<Option<String>>, JwkSetError> {
        let keys = public_keys(format!(r#"{{"keys":[{keys}]}}"#).as_bytes());
        Ok(keys?.into_iter().map(|key| key.id).collect())
    }

    #[test]
    fn keys_for_other_uses_are_skipped_and_secrets_refuse_the_set() {
        let other =
            r#"{"kty":"OKP","crv":"X25519","kid":"b","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
        let encrypts = ED25519.replace(r#""kid":"a""#, r#""kid":"c","use":"enc""#);
        let both = format!("{ED25519},{other},{encrypts}");
        assert_eq!(ids(&both).expect("a set"), [Some("a".to_owned())]);
        for (keys, why) in [
            ("".to_owned(), "no key for"),
            (format!(r#"{ED25519},{{"kty":"oct","k":"c2VjcmV0"}}"#), "a secret"),
            (ED25519.replace(r#""kid":"a""#, r#""d":"x""#), "a private key"),
            ([ED25519; 17].join(","), "17 keys"),
        ] {
            let refused = ids(&keys).expect_err("refused").to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_set_is_a_file_or_comes_over_tls() {
        let source = |text| JwkSetSource::parse(text).ok().flatten();
        assert_eq!(source("/etc/keys.json"), Some(JwkSetSource::File("/etc/keys.json".into())));
        assert!(matches!(source("https://login.example/keys"), Some(JwkSetSource::Url(_))));
        assert!(matches!(source("http://127.0.0.1:8081/keys"), Some(JwkSetSource::Url(_))));
        assert!(JwkSetSource::parse("http://login.example/keys").is_err());
        assert!(JwkSetSource::parse("ftp://login.example/keys").is_err());
        assert!(JwkSetSource::parse("").is_ok_and(|none| none.is_none()));
    }
}
