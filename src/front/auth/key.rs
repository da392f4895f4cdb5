//! One key that verifies tokens.

use base64::Engine as _;
use jsonwebtoken::{Algorithm, DecodingKey};

/// A key with its one algorithm. It refuses tokens that name another algorithm or `none`, and tokens signed with a
/// public key as if it were a secret.
#[derive(Clone)]
pub(super) struct Key {
    /// Its `kid`. A key without one is tried with every token of its algorithm.
    pub(super) id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// The text is not an Ed25519 public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not the x of an Ed25519 JWK: 32 bytes in base64url without padding")]
pub struct InvalidPublicKey;

/// Checks the `x` of an Ed25519 JWK. An empty string is valid and means no key.
pub fn check_public_key(x: &str) -> Result<(), InvalidPublicKey> {
    public_key(x).map(|_| ())
}

/// `None` for an empty string.
pub(super) fn public_key(x: &str) -> Result<Option<DecodingKey>, InvalidPublicKey> {
    if x.is_empty() {
        return Ok(None);
    }
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(x);
    if !bytes.is_ok_and(|bytes| bytes.len() == 32) {
        return Err(InvalidPublicKey);
    }
    DecodingKey::from_ed_components(x).map(Some).map_err(|_| InvalidPublicKey)
}
