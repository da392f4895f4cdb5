//! The prepared requests of a crowd.

use std::ops::Range;
use std::sync::Arc;

use super::error::{BenchError, broken};
use super::load::order;
use super::sample::user;
use super::world::World;
use crate::domain::{Millis, UserId};
use crate::front::{AuthSettings, Signer};

/// Settings for a front whose load must not end with unknown outcomes: if the disk stalls for a second, the round
/// gets slower, but the measurement continues.
pub(super) const LONG_TIMEOUTS: [&str; 2] = ["redis.timeout_ms=10000", "intake.confirm_within_ms=10000"];

/// Signs tokens as the world's fronts expect them.
pub(super) fn tokens(world: &World) -> Signer {
    Signer::new(AuthSettings::with_secret(&world.secret))
}

/// One order request per buyer, each with a separate token.
pub(super) fn requests(
    tokens: &Signer,
    sale: &str,
    buyers: Range<u64>,
) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let requests = buyers.map(|nth| Ok(order(sale, &tokens.mint(&user(nth)?, None, 86_400), None)));
    Ok(Arc::new(requests.collect::<Result<_, BenchError>>()?))
}

/// An identity provider that signs with Ed25519.
pub(super) struct Login {
    key: jsonwebtoken::EncodingKey,
    /// The public key in the form of `auth.public_key`.
    pub(super) x: String,
}

impl Login {
    pub(super) fn new() -> Result<Self, BenchError> {
        use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
        use base64::Engine as _;
        let key = Ed25519KeyPair::generate().map_err(broken)?;
        let x = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(key.public_key().as_ref());
        let key = jsonwebtoken::EncodingKey::from_ed_der(key.to_pkcs8().map_err(broken)?.as_ref());
        Ok(Self { key, x })
    }

    /// A buyer's token, for a day.
    pub(super) fn token(&self, user: &UserId) -> Result<String, BenchError> {
        let now = Millis::now().0 / 1000;
        let claims = serde_json::json!({
            "sub": user, "iss": "doorbuster", "aud": "doorbuster", "exp": now + 86_400, "nbf": now,
        });
        let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA);
        jsonwebtoken::encode(&header, &claims, &self.key).map_err(broken)
    }
}
