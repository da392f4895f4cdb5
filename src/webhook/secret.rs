//! Signatures, following the Standard Webhooks specification: HMAC-SHA256 over an id, a time and the raw body.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const PREFIX: &str = "whsec_";

/// The length of a secret that is generated, in bytes.
const LENGTH: usize = 32;

/// A text is no secret. Does not contain it, because it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret must be whsec_ and the base64 of 24 to 64 bytes")]
pub struct InvalidSecret;

/// What a sender and a receiver share.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// What is signed.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The event's id, the same each time it is sent.
    pub id: &'a str,
    /// When it is sent, in seconds since 1970.
    pub timestamp: i64,
    /// The body, as it is sent.
    pub body: &'a str,
}

impl Secret {
    /// Parses `whsec_` and the base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let base64 = text.strip_prefix(PREFIX).ok_or(InvalidSecret)?;
        let bytes = STANDARD.decode(base64).map_err(|_| InvalidSecret)?;
        if !(24..=64).contains(&bytes.len()) {
            return Err(InvalidSecret);
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The text of a new secret; `None` if the system gives no random bytes.
    pub fn generate() -> Option<String> {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(format!("{PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// The signature, as the header `webhook-signature` has it.
    pub fn sign(&self, signed: Signed<'_>) -> String {
        let text = format!("{}.{}.{}", signed.id, signed.timestamp, signed.body);
        format!("v1,{}", STANDARD.encode(hmac::sign(&self.0, text.as_bytes())))
    }

    /// The key itself, to verify what others have signed.
    pub fn key(&self) -> &hmac::Key {
        &self.0
    }
}
