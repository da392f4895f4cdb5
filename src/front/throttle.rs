//! Cheap limits per address, checked before any other work is done for a request. They are no layer of the router: one would
//! cost each request an allocation and a boxed future.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use super::addresses::{TrustedProxies, network};
use super::auth::BuyerTokens;
use super::codes::RATE_LIMITED;
use super::keyed_limit::KeyedLimit;
use super::problem::{Answered, Problem};
use super::refused_tokens::RefusedTokens;
use crate::domain::{Limited, Rate, RateOf, UserId};

/// The calls of payment providers: they come from few addresses, and are signed.
const EXEMPT: &str = "/v1/payments/callback/";

/// The limit per address, and where the address is read from.
#[derive(Debug, Clone)]
pub struct ThrottleSettings {
    /// Requests per address; `None` for no limit.
    pub rate: Option<Rate>,
    /// Tokens of suspected addresses that are verified; `None` for no limit. Has no effect without `rate`.
    pub suspected: Option<Rate>,
    /// The proxies that name their clients.
    pub proxies: TrustedProxies,
    /// The header in which they do. Without it, requests that come from a proxy have no limit.
    pub header: Option<String>,
}

pub(super) struct Throttle {
    limit: KeyedLimit<IpAddr>,
    refused: RefusedTokens,
    /// Knows which tokens are valid.
    tokens: Arc<BuyerTokens>,
    proxies: TrustedProxies,
    header: Option<String>,
    /// How often an address above the limit is logged.
    warned: DefaultDirectRateLimiter,
}

impl Throttle {
    /// `None` without a rate per address.
    pub(super) fn new(settings: &ThrottleSettings, tokens: &Arc<BuyerTokens>) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            limit: KeyedLimit::new(settings.rate?, RateOf::Address)?,
            refused: RefusedTokens::new(settings.suspected),
            tokens: tokens.clone(),
            proxies: settings.proxies.clone(),
            header: settings.header.clone(),
            warned: RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN)),
        }))
    }

    /// Admits a request, or refuses it because its address has reached its limit, or sends a token and others of that address
    /// were refused. Returns the address whose refused tokens count; `None` if the request is exempt.
    pub(super) fn admit(&self, peer: IpAddr, request: &Request<Body>) -> Answered<Option<IpAddr>> {
        if request.uri().path().starts_with(EXEMPT) {
            return Ok(None);
        }
        let client = self.proxies.client(peer, request.headers(), self.header.as_deref()).map(network);
        let Some(client) = client else { return Ok(None) };
        if let Err(limited) = self.limit.check(&client) {
            self.warn_of(client);
            return Err(rate_limited(&limited));
        }
        if self.refused.is_suspected(client, Instant::now())
            && self.tokens.must_verify(request.headers())
            && !self.refused.may_verify_one()
        {
            let detail = "too many tokens from your address were refused; this attempt took nothing";
            return Err(Problem::new(RATE_LIMITED, detail).reason("refused_tokens").retry_after(1));
        }
        Ok(Some(client))
    }

    /// Learns how a request of this address was answered.
    pub(super) fn note(&self, client: IpAddr, status: StatusCode) {
        if status == StatusCode::UNAUTHORIZED {
            self.refused.count(client, Instant::now());
        }
    }

    /// A proxy that is not named would have one limit for everybody behind it, so an operator must learn of it.
    fn warn_of(&self, client: IpAddr) {
        if self.warned.check().is_ok() {
            tracing::warn!(
                %client,
                rate = %self.limit.rate,
                "an address has reached front.address_rate; if it is your proxy, name it in front.trusted_proxies"
            );
        }
    }
}

/// 429, with the limit and the time to retry.
pub(super) fn rate_limited(limited: &Limited) -> Box<Problem> {
    let Limited { of, rate, retry_after } = limited;
    let whose = of.as_str();
    let why = match of {
        RateOf::EndedOrders => format!("{} of your orders have ended in {} s", rate.count(), rate.seconds()),
        RateOf::Address | RateOf::User | RateOf::Sale => format!("more than {rate} per {whose}"),
    };
    let seconds = u64::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(1).max(1);
    Problem::new(RATE_LIMITED, format!("{why}; this attempt took nothing"))
        .reason(whose)
        .with("limit", rate.to_string())
        .retry_after(seconds)
        .header("ratelimit-policy", format!("\"{whose}\";q={};w={}", rate.count(), rate.seconds()))
        .header("ratelimit", format!("\"{whose}\";r=0;t={seconds}"))
}

/// The limit of what one buyer may read and cancel. Orders have limits in the sale's terms.
pub struct BuyerLimit(Option<KeyedLimit<UserId>>);

impl BuyerLimit {
    /// `None` for no limit.
    pub fn new(rate: Option<Rate>) -> Self {
        Self(rate.and_then(|rate| KeyedLimit::new(rate, RateOf::User)))
    }

    /// Counts a request of the buyer, or refuses it.
    pub(super) fn check(&self, user: &UserId) -> Answered<()> {
        let Some(limit) = &self.0 else { return Ok(()) };
        limit.check(user).map_err(|limited| rate_limited(&limited))
    }
}
