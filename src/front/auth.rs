//! Who sends a request: bearer tokens (JWT), which the shop's login signs with a shared secret (HS256) or with its
//! Ed25519 key (EdDSA). Doorbuster has only the public half of that key.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::codes::{FORBIDDEN, UNAUTHENTICATED};
use super::known_tokens::{Known, KnownTokens};
use super::problem::{Answered, Problem};
use crate::domain::{Millis, UserId};

/// How tokens are verified.
#[derive(Debug, Clone)]
pub struct AuthSettings {
    /// The HS256 secret; empty if only the public key is accepted.
    pub secret: String,
    /// The Ed25519 key, as the `x` of its JWK; empty for none.
    pub public_key: String,
    /// The required `iss` of a token.
    pub issuer: String,
    /// The required `aud` of a token.
    pub audience: String,
    /// Allowed difference between the clocks of the login and of this host, in seconds.
    pub leeway: u64,
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

/// The claims of a token whose signature, times, issuer and audience are valid.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Claims {
    pub(super) sub: String,
    /// Seconds since 1970, possibly with a fraction (RFC 7519).
    exp: f64,
    /// An unknown role counts as none: the shop's login may issue roles of other systems.
    #[serde(default, deserialize_with = "known_role")]
    pub(super) role: Option<Role>,
}

fn known_role<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Role>, D::Error> {
    let role = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(role).ok())
}

/// The claims of a new token, with times in seconds since 1970.
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

/// A key with its one algorithm. It refuses tokens that name another algorithm or `none`, and tokens signed with the
/// public key as if it were a secret.
struct Verifier {
    algorithm: Algorithm,
    key: DecodingKey,
    rules: Validation,
}

impl Verifier {
    fn new(algorithm: Algorithm, key: DecodingKey, settings: &AuthSettings) -> Self {
        let mut rules = Validation::new(algorithm);
        rules.leeway = settings.leeway;
        rules.validate_exp = true;
        rules.validate_nbf = true;
        rules.validate_aud = true;
        rules.set_audience(&[&settings.audience]);
        rules.set_issuer(&[&settings.issuer]);
        rules.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        Self { algorithm, key, rules }
    }
}

/// Verifies tokens, and mints them for development and drills.
pub struct Tokens {
    settings: AuthSettings,
    verifiers: Vec<Verifier>,
    sign: EncodingKey,
    known: KnownTokens<Claims>,
}

impl Tokens {
    /// An invalid public key verifies nothing; check it with [`check_public_key`] first.
    pub fn new(settings: AuthSettings) -> Self {
        let mut verifiers = Vec::new();
        if !settings.secret.is_empty() {
            let key = DecodingKey::from_secret(settings.secret.as_bytes());
            verifiers.push(Verifier::new(Algorithm::HS256, key, &settings));
        }
        // An invalid key was refused when the configuration was checked.
        if let Ok(Some(key)) = public_key(&settings.public_key) {
            verifiers.push(Verifier::new(Algorithm::EdDSA, key, &settings));
        }
        Self {
            verifiers,
            sign: EncodingKey::from_secret(settings.secret.as_bytes()),
            settings,
            known: KnownTokens::new(),
        }
    }

    /// A token that is valid for `lasts` seconds from now, signed with the HS256 secret.
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
        // Signing text and numbers with HMAC cannot fail.
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.sign).unwrap_or_default()
    }

    /// The buyer who sends a request.
    pub(super) fn user(&self, headers: &HeaderMap) -> Answered<UserId> {
        let known = self.claims(headers)?;
        UserId::parse(known.claims.sub.as_str())
            .map_err(|error| Problem::new(UNAUTHENTICATED, format!("the token's sub: {error}")))
    }

    /// The claims of an operator whose role is at least `needed`.
    pub(super) fn operator(&self, headers: &HeaderMap, needed: Role) -> Answered<Claims> {
        let known = self.claims(headers)?;
        match known.claims.role {
            Some(role) if role >= needed => Ok(known.claims.clone()),
            _ => Err(Problem::new(
                FORBIDDEN,
                format!("this needs the role {needed:?} or a higher one").to_lowercase(),
            )),
        }
    }

    fn claims(&self, headers: &HeaderMap) -> Answered<Arc<Known<Claims>>> {
        let refuse = |detail: &str| Problem::new(UNAUTHENTICATED, detail);
        let value =
            headers.get(header::AUTHORIZATION).ok_or_else(|| refuse("there is no Authorization header"))?;
        let text = value.to_str().map_err(|_| refuse("the Authorization header is not text"))?;
        let token = text
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| refuse("the Authorization header is not 'Bearer <token>'"))?;
        if let Some(known) = self.known.get(token, Millis::now().0 / 1000) {
            return Ok(known);
        }
        let invalid = |error| refuse(&format!("the token is not valid: {error}"));
        let verifier = match &self.verifiers[..] {
            // Decoding checks the algorithm.
            [only] => only,
            several => {
                let algorithm = jsonwebtoken::decode_header(token).map_err(invalid)?.alg;
                let verifier = several.iter().find(|verifier| verifier.algorithm == algorithm);
                verifier.ok_or_else(|| invalid(ErrorKind::InvalidAlgorithm.into()))?
            }
        };
        let claims =
            jsonwebtoken::decode::<Claims>(token, &verifier.key, &verifier.rules).map_err(invalid)?.claims;
        let until = (claims.exp.floor() as i64).saturating_add(self.settings.leeway.cast_signed());
        Ok(self.known.put(token, Known { claims, until }))
    }
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
fn public_key(x: &str) -> Result<Option<DecodingKey>, InvalidPublicKey> {
    if x.is_empty() {
        return Ok(None);
    }
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(x);
    if !bytes.is_ok_and(|bytes| bytes.len() == 32) {
        return Err(InvalidPublicKey);
    }
    DecodingKey::from_ed_components(x).map(Some).map_err(|_| InvalidPublicKey)
}
