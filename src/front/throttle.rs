//! Cheap limits per address, checked before any other work is done for a request.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use super::addresses::{TrustedProxies, network};
use super::auth::BuyerTokens;
use super::codes::RATE_LIMITED;
use super::keyed_limit::KeyedLimit;
use super::problem::{Answered, Problem};
use super::refused_tokens::RefusedTokens;
use super::server::Peer;
use crate::domain::{Limited, Rate, RateOf, UserId};

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

/// Middleware that refuses requests above the limit of their address, and tokens of addresses whose tokens were refused.
pub(super) async fn throttle(
    State(throttle): State<Arc<Throttle>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let client = peer
        .and_then(|peer| throttle.proxies.client(peer, request.headers(), throttle.header.as_deref()))
        .map(network);
    let Some(client) = client else { return next.run(request).await };
    if let Err(limited) = throttle.limit.check(&client) {
        throttle.warn_of(client);
        return rate_limited(&limited).of_request(request.headers()).into_response();
    }
    let now = Instant::now();
    if throttle.refused.is_suspected(client, now)
        && throttle.tokens.must_verify(request.headers())
        && !throttle.refused.may_verify_one()
    {
        let detail = "too many tokens from your address were refused; this attempt took nothing";
        let problem = Problem::new(RATE_LIMITED, detail).reason("refused_tokens").retry_after(1);
        return problem.of_request(request.headers()).into_response();
    }
    let response = next.run(request).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        throttle.refused.count(client, now);
    }
    response
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
