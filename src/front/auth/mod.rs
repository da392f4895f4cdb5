//! Who sends a request: bearer tokens (JWT), which the shop's login signs. The audience of a token says
//! whether it is a buyer's or an operator's, so that no token of a buyer ever has a role.
//!
//! In reading order: [`key`] is one key, [`jwk_set`] reads those of the login, [`key_ring`] holds all, [`verify`] judges a token,
//! [`known_tokens`] remembers those that were valid, [`mint`] makes tokens for development.

mod jwk_set;
mod key;
mod key_ring;
mod known_tokens;
mod mint;
mod verify;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use jwk_set::{JwkSetError, JwkSetSource};
pub use key::{InvalidPublicKey, check_public_key};
pub use key_ring::KeyRing;
pub use mint::Signer;
pub use verify::{BuyerTokens, OperatorTokens};

/// How tokens are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSettings {
    /// The HS256 secret; empty if only public keys are accepted.
    pub secret: String,
    /// An Ed25519 key, as the `x` of its JWK; empty for none.
    pub public_key: String,
    /// Where the login publishes its keys.
    pub jwks: Option<JwkSetSource>,
    /// How often the published keys are read again.
    pub jwks_every: Duration,
    /// The required `iss` of a token.
    pub issuer: String,
    /// The required `aud` of a buyer's token.
    pub audience: String,
    /// The required `aud` of an operator's token.
    pub operators_audience: String,
    /// The claim that holds an operator's role.
    pub role_claim: String,
    /// The longest time from `nbf` to `exp`.
    pub longest_life: Duration,
    /// Allowed difference between the clocks of the login and of this host.
    pub leeway: Duration,
}

impl AuthSettings {
    /// The defaults, with this secret.
    pub fn with_secret(secret: &str) -> Self {
        Self {
            secret: secret.to_owned(),
            public_key: String::new(),
            jwks: None,
            jwks_every: Duration::from_secs(60),
            issuer: "doorbuster".into(),
            audience: "doorbuster".into(),
            operators_audience: "doorbuster-operations".into(),
            role_claim: "urn:doorbuster:role".into(),
            longest_life: Duration::from_secs(86_400),
            leeway: Duration::from_secs(2),
        }
    }

    /// Without the secret: it verifies tokens, but it also makes them.
    pub fn without_secret(self) -> Self {
        Self { secret: String::new(), ..self }
    }

    /// Whether a token can be valid at all.
    pub fn has_key(&self) -> bool {
        !self.secret.is_empty() || !self.public_key.is_empty() || self.jwks.is_some()
    }
}

/// What an operator may do. Each role includes the roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May read everything.
    Viewer,
    /// May also act on sales, orders and dead letters.
    Operator,
    /// May also create sales.
    Admin,
}
