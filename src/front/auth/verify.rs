//! Judges a token: its signature, its times, its issuer, its audience, its life.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::key::Key;
use super::key_ring::{KeyRing, Keys};
use super::known_tokens::{Known, KnownTokens};
use super::{AuthSettings, Role};
use crate::domain::{Millis, UserId};
use crate::front::codes::{FORBIDDEN, KEYS_UNAVAILABLE, UNAUTHENTICATED};
use crate::front::problem::{Answered, Problem};

/// The algorithms that a key can be for.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::HS256, Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256];

/// Verifies buyers' tokens.
pub struct BuyerTokens(Verifier<BuyerClaims>);

impl BuyerTokens {
    /// With these keys.
    pub fn new(settings: &AuthSettings, keys: KeyRing) -> Self {
        Self(Verifier::new(settings, &settings.audience, keys))
    }

    /// Whether a request has a token that would have to be verified: it was not seen before, or refused.
    pub(in crate::front) fn must_verify(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_ok_and(|token| !self.0.remembers(token))
    }

    /// The buyer who sends a request.
    pub(in crate::front) async fn user(&self, headers: &HeaderMap) -> Answered<UserId> {
        let known = self.0.claims(headers).await?;
        UserId::parse(known.claims.sub.as_str())
            .map_err(|error| unauthenticated("sub", format!("the token's sub: {error}")))
    }
}

/// Verifies operators' tokens.
pub struct OperatorTokens {
    verifier: Verifier<OperatorClaims>,
    role_claim: String,
}

impl OperatorTokens {
    /// With these keys.
    pub fn new(settings: &AuthSettings, keys: KeyRing) -> Self {
        Self {
            verifier: Verifier::new(settings, &settings.operators_audience, keys),
            role_claim: settings.role_claim.clone(),
        }
    }

    /// The operator who sends a request, if their role is at least `needed`.
    pub(in crate::front) async fn operator(&self, headers: &HeaderMap, needed: Role) -> Answered<String> {
        let known = self.verifier.claims(headers).await?;
        let role = known.claims.others.get(&self.role_claim);
        // A role that is not ours counts as none.
        let role = role.and_then(|role| Role::deserialize(role).ok());
        match role {
            Some(role) if role >= needed => Ok(known.claims.sub.clone()),
            _ => {
                let detail = format!("this needs the role {needed:?} or a higher one").to_lowercase();
                Err(Problem::new(FORBIDDEN, detail).reason("role"))
            }
        }
    }
}

/// The claims of a token whose signature, times, issuer and audience are valid.
trait Claims: DeserializeOwned + Clone {
    /// `nbf` and `exp`: seconds since 1970, possibly with a fraction (RFC 7519).
    fn times(&self) -> (f64, f64);
}

#[derive(Clone, Deserialize)]
struct BuyerClaims {
    sub: String,
    nbf: f64,
    exp: f64,
}

#[derive(Clone, Deserialize)]
struct OperatorClaims {
    sub: String,
    nbf: f64,
    exp: f64,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Claims for BuyerClaims {
    fn times(&self) -> (f64, f64) {
        (self.nbf, self.exp)
    }
}

impl Claims for OperatorClaims {
    fn times(&self) -> (f64, f64) {
        (self.nbf, self.exp)
    }
}

/// Why no key has verified a token.
enum Refused {
    /// No key fits, which a newer set of keys may change.
    UnknownKey,
    Because(Box<Problem>),
}

struct Verifier<C> {
    keys: KeyRing,
    rules: Vec<(Algorithm, Validation)>,
    leeway: i64,
    longest_life: Duration,
    known: KnownTokens<C>,
}

impl<C: Claims> Verifier<C> {
    fn new(settings: &AuthSettings, audience: &str, keys: KeyRing) -> Self {
        let rules = ALGORITHMS.map(|algorithm| {
            let mut rules = Validation::new(algorithm);
            rules.leeway = settings.leeway.as_secs();
            rules.validate_exp = true;
            rules.validate_nbf = true;
            rules.validate_aud = true;
            rules.set_audience(&[audience]);
            rules.set_issuer(&[&settings.issuer]);
            rules.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
            (algorithm, rules)
        });
        Self {
            keys,
            rules: rules.into(),
            leeway: settings.leeway.as_secs().cast_signed(),
            longest_life: settings.longest_life,
            known: KnownTokens::new(),
        }
    }

    /// The claims of a request's token. Waits for the login's keys to be read again if the token names an unknown one.
    async fn claims(&self, headers: &HeaderMap) -> Answered<Arc<Known<C>>> {
        let token = bearer(headers)?;
        match self.verify(token, &self.keys.current()) {
            Ok(known) => return Ok(known),
            Err(Refused::Because(problem)) => return Err(problem),
            Err(Refused::UnknownKey) => {}
        }
        // Boxed, because few requests come here.
        let is_newer = Box::pin(self.keys.read_again(Instant::now())).await;
        let again =
            if is_newer { self.verify(token, &self.keys.current()) } else { Err(Refused::UnknownKey) };
        match again {
            Ok(known) => Ok(known),
            Err(Refused::Because(problem)) => Err(problem),
            Err(Refused::UnknownKey) if !self.keys.is_complete() => {
                Err(Problem::new(KEYS_UNAVAILABLE, "the login's keys cannot be read now").retry_after(1))
            }
            Err(Refused::UnknownKey) => {
                Err(unauthenticated("unknown_key", "the token is not valid: no key of the login fits it"))
            }
        }
    }

    fn remembers(&self, token: &str) -> bool {
        self.known.get(token, Millis::now().0 / 1000, self.keys.current().version).is_some()
    }

    fn verify(&self, token: &str, keys: &Keys) -> Result<Arc<Known<C>>, Refused> {
        if let Some(known) = self.known.get(token, Millis::now().0 / 1000, keys.version) {
            return Ok(known);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|error| invalid(&error))?;
        let fits = |key: &&Key| {
            key.algorithm == header.alg && (key.id.is_none() || header.kid.is_none() || key.id == header.kid)
        };
        // A key that has no id cannot tell that a token names a key which is not known yet.
        let is_named = header.kid.is_none() || keys.keys.iter().any(|key| key.id == header.kid);
        let mut refused = Refused::UnknownKey;
        for key in keys.keys.iter().filter(fits) {
            let Some((_, rules)) = self.rules.iter().find(|(algorithm, _)| *algorithm == key.algorithm)
            else {
                continue;
            };
            match jsonwebtoken::decode::<C>(token, &key.key, rules) {
                Ok(decoded) => return self.within_its_life(token, decoded.claims, keys.version),
                // Another key may fit.
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {
                    if is_named {
                        refused = invalid(&error);
                    }
                }
                Err(error) => return Err(invalid(&error)),
            }
        }
        Err(refused)
    }

    fn within_its_life(&self, token: &str, claims: C, keys: u64) -> Result<Arc<Known<C>>, Refused> {
        let (from, until) = claims.times();
        if until - from > self.longest_life.as_secs_f64() {
            let longest = self.longest_life.as_secs();
            let detail = format!("the token is not valid: it may last {longest} seconds from nbf to exp");
            return Err(Refused::Because(unauthenticated("life", detail)));
        }
        let until = (until.floor() as i64).saturating_add(self.leeway);
        Ok(self.known.put(token, Known { claims, until, keys }))
    }
}

/// The token of the `Authorization` header.
fn bearer(headers: &HeaderMap) -> Answered<&str> {
    let refuse = |detail: &str| unauthenticated("no_token", detail);
    let value =
        headers.get(header::AUTHORIZATION).ok_or_else(|| refuse("there is no Authorization header"))?;
    let text = value.to_str().map_err(|_| refuse("the Authorization header is not text"))?;
    text.split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or_else(|| refuse("the Authorization header is not 'Bearer <token>'"))
}

fn unauthenticated(reason: &'static str, detail: impl Into<String>) -> Box<Problem> {
    Problem::new(UNAUTHENTICATED, detail).reason(reason)
}

fn invalid(error: &jsonwebtoken::errors::Error) -> Refused {
    let reason = match error.kind() {
        ErrorKind::InvalidSignature => "signature",
        ErrorKind::ExpiredSignature => "expired",
        ErrorKind::ImmatureSignature => "not_yet_valid",
        ErrorKind::InvalidAudience => "audience",
        ErrorKind::InvalidIssuer => "issuer",
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => "algorithm",
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => "claims",
        _ => "malformed",
    };
    Refused::Because(unauthenticated(reason, format!("the token is not valid: {error}")))
}
