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
use super::keyed_limit::rate_limited;
use super::live::LiveFront;
use super::problem::{Answered, Problem};
use super::refused_tokens::RefusedTokens;
use crate::domain::Rate;

/// The calls of payment providers: they come from few addresses, and are signed.
const EXEMPT: &str = "/v1/payments/callback/";

/// Where the address of a request is read from.
#[derive(Debug, Clone)]
pub struct ThrottleSettings {
    /// The proxies that name their clients.
    pub proxies: TrustedProxies,
    /// The header in which they do. Without it, requests that come from a proxy have no limit.
    pub header: Option<String>,
}

pub(super) struct Throttle {
    live: Arc<LiveFront>,
    refused: RefusedTokens,
    /// Knows which tokens are valid.
    tokens: Arc<BuyerTokens>,
    proxies: TrustedProxies,
    header: Option<String>,
    /// How often an address above the limit is logged.
    warned: DefaultDirectRateLimiter,
}

impl Throttle {
    pub(super) fn new(
        settings: &ThrottleSettings,
        live: &Arc<LiveFront>,
        tokens: &Arc<BuyerTokens>,
    ) -> Arc<Self> {
        Arc::new(Self {
            live: live.clone(),
            refused: RefusedTokens::default(),
            tokens: tokens.clone(),
            proxies: settings.proxies.clone(),
            header: settings.header.clone(),
            warned: RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN)),
        })
    }

    /// Admits a request, or refuses it because its address has reached its limit, or sends a token and others of that address
    /// were refused. Returns the address whose refused tokens count; `None` if the request is exempt, or there is no limit.
    pub(super) fn admit(&self, peer: IpAddr, request: &Request<Body>) -> Answered<Option<IpAddr>> {
        if !self.live.address.is_set() || request.uri().path().starts_with(EXEMPT) {
            return Ok(None);
        }
        let client = self.proxies.client(peer, request.headers(), self.header.as_deref()).map(network);
        let Some(client) = client else { return Ok(None) };
        if let Err(limited) = self.live.address.check(&client) {
            self.warn_of(client, limited.rate);
            return Err(rate_limited(&limited));
        }
        if self.refused.is_suspected(client, Instant::now())
            && self.tokens.must_verify(request.headers())
            && self.live.suspected.check(&()).is_err()
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
    fn warn_of(&self, client: IpAddr, rate: Rate) {
        if self.warned.check().is_ok() {
            tracing::warn!(
                %client,
                %rate,
                "an address has reached front.address_rate; if it is your proxy, name it in front.trusted_proxies"
            );
        }
    }
}
