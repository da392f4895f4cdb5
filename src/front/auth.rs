//! Who is asking? Bearer tokens, signed with HS256 and a secret that the shop's login shares.

use axum::http::{HeaderMap, header};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::problem::{Answered, FORBIDDEN, Problem, UNAUTHENTICATED};
use crate::domain::{Millis, UserId};

#[derive(Debug, Clone)]
pub struct AuthSettings {
    pub secret: String,
    pub issuer: String,
    pub audience: String,
    /// Seconds by which clocks may differ.
    pub leeway: u64,
}

/// What an operator may do; each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Viewer,
    Operator,
    Admin,
}

/// What is read of a token whose signature, times, issuer and audience are right.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Claims {
    pub(super) sub: String,
    /// A role that Doorbuster does not know is none: the shop's login may have roles of its own.
    #[serde(default, deserialize_with = "known_role")]
    pub(super) role: Option<Role>,
}

fn known_role<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Role>, D::Error> {
    let role = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(role).ok())
}

/// A token's claims, times in seconds since 1970.
#[derive(Serialize)]
struct Minted<'a> {
    sub: &'a UserId,
    iss: &'a str,
    aud: &'a str,
    exp: i64,
    nbf: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
}

/// Verifies tokens, and mints them for development.
pub struct Tokens {
    settings: AuthSettings,
    verify: DecodingKey,
    sign: EncodingKey,
    rules: Validation,
}

impl Tokens {
    pub fn new(settings: AuthSettings) -> Self {
        // One algorithm: a token that names another, or `none`, is not looked at.
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = settings.leeway;
        rules.validate_exp = true;
        rules.validate_nbf = true;
        rules.validate_aud = true;
        rules.set_audience(&[&settings.audience]);
        rules.set_issuer(&[&settings.issuer]);
        rules.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        Self {
            verify: DecodingKey::from_secret(settings.secret.as_bytes()),
            sign: EncodingKey::from_secret(settings.secret.as_bytes()),
            settings,
            rules,
        }
    }

    /// A token for `lasts` seconds from now.
    pub fn mint(&self, user: &UserId, role: Option<Role>, lasts: u32) -> String {
        let now = Millis::now().0 / 1000;
        let claims = Minted {
            sub: user,
            iss: &self.settings.issuer,
            aud: &self.settings.audience,
            exp: now + i64::from(lasts),
            nbf: now,
            role,
        };
        // HMAC over texts and numbers cannot fail.
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.sign).unwrap_or_default()
    }

    pub(super) fn user(&self, headers: &HeaderMap) -> Answered<UserId> {
        let claims = self.claims(headers)?;
        UserId::parse(claims.sub)
            .map_err(|error| Problem::new(UNAUTHENTICATED, format!("the token's sub: {error}")))
    }

    pub(super) fn operator(&self, headers: &HeaderMap, needed: Role) -> Answered<Claims> {
        let claims = self.claims(headers)?;
        match claims.role {
            Some(role) if role >= needed => Ok(claims),
            _ => Err(Problem::new(
                FORBIDDEN,
                format!("this needs the role {needed:?} or a higher one").to_lowercase(),
            )),
        }
    }

    fn claims(&self, headers: &HeaderMap) -> Answered<Claims> {
        let refuse = |detail: &str| Problem::new(UNAUTHENTICATED, detail);
        let value =
            headers.get(header::AUTHORIZATION).ok_or_else(|| refuse("there is no Authorization header"))?;
        let text = value.to_str().map_err(|_| refuse("the Authorization header is not text"))?;
        let token = text
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| refuse("the Authorization header is not 'Bearer <token>'"))?;
        jsonwebtoken::decode::<Claims>(token, &self.verify, &self.rules)
            .map(|data| data.claims)
            .map_err(|error| refuse(&format!("the token is not valid: {error}")))
    }
}
