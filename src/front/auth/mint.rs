//! Signs tokens with the shared secret, for development and drills. No process that serves has one of these: in
//! production the shop's login signs.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Map, Value};

use super::{AuthSettings, Role};
use crate::domain::{Millis, UserId};

/// Makes tokens that a process with the same settings accepts.
pub struct Signer {
    settings: AuthSettings,
    key: EncodingKey,
}

impl Signer {
    /// Signs with the HS256 secret of the settings.
    pub fn new(settings: AuthSettings) -> Self {
        Self { key: EncodingKey::from_secret(settings.secret.as_bytes()), settings }
    }

    /// A token that is valid for `lasts` seconds from now: an operator's if there is a role, otherwise a buyer's.
    pub fn mint(&self, user: &UserId, role: Option<Role>, lasts: u32) -> String {
        let AuthSettings { issuer, audience, operators_audience, role_claim, .. } = &self.settings;
        let now = Millis::now().0 / 1000;
        let mut claims = Map::new();
        claims.insert("sub".into(), user.as_str().into());
        claims.insert("iss".into(), issuer.as_str().into());
        claims.insert("exp".into(), (now + i64::from(lasts)).into());
        claims.insert("nbf".into(), now.into());
        let audience = if role.is_some() { operators_audience } else { audience };
        claims.insert("aud".into(), audience.as_str().into());
        if let Some(role) = role {
            claims.insert(role_claim.clone(), serde_json::to_value(role).unwrap_or(Value::Null));
        }
        // Signing text and numbers with HMAC cannot fail.
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.key).unwrap_or_default()
    }
}
