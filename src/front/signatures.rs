//! Signatures of payment providers, following the Standard Webhooks specification: HMAC-SHA256 over an id, a time and
//! the raw body.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::codes::BAD_SIGNATURE;
use super::problem::{Answered, Problem};
use crate::domain::Millis;
use crate::webhook::{Secret, Signed};

/// Allowed difference between a callback's time and this host's clock, in seconds. An older callback may be a
/// replayed copy.
const FRESH_S: i64 = 300;

/// Signatures in one header: one for each secret of a rotation, and room for versions to come.
const MOST_SIGNATURES: usize = 8;

/// The length of an HMAC-SHA256 in base64.
const BASE64_LENGTH: usize = 44;

/// Why the providers' secrets cannot be used. Never contains a secret, because it is printed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// The name is empty, is too long, or has other characters.
    #[error("a provider's name must be 1 to 40 of a-z, 0-9 and '-'")]
    InvalidName,
    /// A provider without a secret cannot sign.
    #[error("the provider {0} has no secret")]
    NoSecret(String),
    /// Two lines name the same provider.
    #[error("the provider {0} is listed twice")]
    Duplicate(String),
    /// A secret of this provider has the wrong form or length.
    #[error("a secret of {0} must be whsec_ and the base64 of 24 to 64 bytes")]
    InvalidSecret(String),
}

/// The providers that may call, each with its secrets: several while one is being rotated.
#[derive(Clone, Default)]
pub struct Providers(BTreeMap<String, Vec<hmac::Key>>);

impl Providers {
    /// Parses `provider secret secret…`: one provider per line, or several separated by `;`. A secret is
    /// `whsec_` and the base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self, SecretsError> {
        let mut providers = BTreeMap::new();
        for line in text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            let named = name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
            if !named || name.len() > 40 {
                return Err(SecretsError::InvalidName);
            }
            let secrets = words.map(|secret| key(secret, &name)).collect::<Result<Vec<_>, _>>()?;
            if secrets.is_empty() {
                return Err(SecretsError::NoSecret(name));
            }
            if providers.insert(name.clone(), secrets).is_some() {
                return Err(SecretsError::Duplicate(name));
            }
        }
        Ok(Self(providers))
    }

    /// The secrets of a provider; none if it may not call.
    pub(super) fn secrets(&self, provider: &str) -> &[hmac::Key] {
        self.0.get(provider).map(Vec::as_slice).unwrap_or_default()
    }
}

fn key(secret: &str, provider: &str) -> Result<hmac::Key, SecretsError> {
    let secret = Secret::parse(secret).map_err(|_| SecretsError::InvalidSecret(provider.to_owned()))?;
    Ok(secret.key().clone())
}

/// Signs an event as a provider does, for drills and tests. `timestamp` is in seconds since 1970. The result is
/// the value of the `webhook-signature` header.
pub fn signature(secret: &str, id: &str, timestamp: i64, body: &str) -> Result<String, SecretsError> {
    let secret = Secret::parse(secret).map_err(|_| SecretsError::InvalidSecret("the drill".into()))?;
    Ok(secret.sign(Signed { id, timestamp, body }))
}

/// What a callback says of itself. It may be forged.
pub(super) struct Claimed<'a> {
    id: &'a str,
    timestamp: &'a str,
    tags: Vec<[u8; 32]>,
}

/// Reads the headers of a callback, whose time must be recent. Before the body is read, so that most strangers get no
/// further.
pub(super) fn claimed(headers: &HeaderMap) -> Answered<Claimed<'_>> {
    let header = |name: &str| {
        let text = headers.get(name).and_then(|value| value.to_str().ok());
        text.ok_or_else(|| refused("no_header", format!("there is no readable {name} header")))
    };
    let (id, timestamp, signatures) =
        (header("webhook-id")?, header("webhook-timestamp")?, header("webhook-signature")?);
    if !(1..=100).contains(&id.len()) || !id.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(refused("id", "webhook-id must be 1 to 100 visible ASCII characters"));
    }
    let age_s = timestamp.parse::<i64>().ok().and_then(|sent| (Millis::now().0 / 1000).checked_sub(sent));
    if !age_s.is_some_and(|age| (-FRESH_S..=FRESH_S).contains(&age)) {
        metrics::counter!("doorbuster_payments_stale_total").increment(1);
        let detail = format!("webhook-timestamp must be within {FRESH_S} seconds of now");
        return Err(refused("time", detail));
    }
    Ok(Claimed { id, timestamp, tags: tags(signatures)? })
}

impl Claimed<'_> {
    /// The event's id, if one of the provider's secrets signed the id, the time and the body. The work is bounded whatever
    /// the caller sends: one HMAC for each secret, or one for an unknown provider, whose callers get the same answer.
    pub(super) fn verified_id(self, secrets: &[hmac::Key], body: &[u8]) -> Answered<String> {
        let mut signed = format!("{}.{}.", self.id, self.timestamp).into_bytes();
        signed.extend_from_slice(body);
        let secrets = if secrets.is_empty() { std::slice::from_ref(nobodys()) } else { secrets };
        let genuine = secrets.iter().any(|secret| {
            let right = hmac::sign(secret, &signed);
            self.tags.iter().any(|tag| verify_slices_are_equal(right.as_ref(), tag).is_ok())
        });
        if !genuine {
            metrics::counter!("doorbuster_payments_forged_total").increment(1);
            return Err(refused("signature", "no secret of this provider made this signature"));
        }
        Ok(self.id.to_owned())
    }
}

fn refused(reason: &'static str, detail: impl Into<String>) -> Box<Problem> {
    Problem::new(BAD_SIGNATURE, detail).reason(reason)
}

/// The signatures of version 1 that have the right length.
fn tags(signatures: &str) -> Answered<Vec<[u8; 32]>> {
    let signatures: Vec<&str> = signatures.split(' ').take(MOST_SIGNATURES + 1).collect();
    if signatures.len() > MOST_SIGNATURES {
        let detail = format!("webhook-signature may have {MOST_SIGNATURES} signatures");
        return Err(refused("too_many_signatures", detail));
    }
    let tags = signatures.iter().filter_map(|signature| {
        let text = signature.strip_prefix("v1,").filter(|text| text.len() == BASE64_LENGTH)?;
        STANDARD.decode(text).ok()?.try_into().ok()
    });
    Ok(tags.collect())
}

/// The secret of a provider that nobody has.
fn nobodys() -> &'static hmac::Key {
    static NOBODYS: OnceLock<hmac::Key> = OnceLock::new();
    NOBODYS.get_or_init(|| hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example from the specification.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let signature =
            signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature.as_deref(), Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn secrets_are_read_and_never_shown() {
        assert!(Providers::parse(&format!("acme {SECRET} {SECRET}\n\nother {SECRET}")).is_ok());
        assert!(Providers::parse("").is_ok());
        for wrong in
            ["acme", "acme whsec_short", "Acme x", "acme hunter2hunter2", &format!("a {SECRET};a {SECRET}")]
        {
            let error = Providers::parse(wrong).err().expect(wrong);
            let error = error.to_string();
            assert!(!error.contains("whsec_short") && !error.contains("hunter2"), "{error}");
        }
    }
}
