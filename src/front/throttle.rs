//! Cheap limits per address, checked before any other work is done for a request. They are no layer of the router: one would
//! cost each request an allocation and a boxed future.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use super::addresses::{TrustedProxies, network};
use super::auth::BuyerTokens;
use super::codes::RATE_LIMITED;
use super::keyed_limit::rate_limited;
use super::live::LiveFront;
use super::problem::{Answered, Problem};
use super::suspected::SuspectedAddresses;
use crate::domain::Rate;

/// The calls of payment providers: they come from few addresses and are signed, so they have no limit of requests. But to
/// verify a forged one costs what a forged token does.
const CALLBACKS: &str = "/v1/payments/callback/";

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
    suspected: SuspectedAddresses,
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
            suspected: SuspectedAddresses::default(),
            tokens: tokens.clone(),
            proxies: settings.proxies.clone(),
            header: settings.header.clone(),
            warned: RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN)),
        })
    }

    /// The client that sends a request. `None` if it comes from a proxy that passes on no address.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        self.proxies.client(peer, headers, self.header.as_deref()).map(network)
    }

    /// Admits a request, or refuses it because its address has reached its limit, or sends a token or a signature and others
    /// of that address were refused. Returns the address whose refusals count; `None` if there is no limit.
    pub(super) fn admit(&self, peer: IpAddr, request: &Request<Body>) -> Answered<Option<IpAddr>> {
        if !self.live.address.is_set() {
            return Ok(None);
        }
        let Some(client) = self.client(peer, request.headers()) else { return Ok(None) };
        let is_callback = request.uri().path().starts_with(CALLBACKS);
        if !is_callback && let Err(limited) = self.live.address.check(&client) {
            self.warn_of(client, limited.rate);
            return Err(rate_limited(&limited));
        }
        if self.suspected.is_suspected(client, Instant::now())
            && (is_callback || self.tokens.must_verify(request.headers()))
            && self.live.suspected.check(&()).is_err()
        {
            let (what, reason) =
                if is_callback { ("signatures", "refused_signatures") } else { ("tokens", "refused_tokens") };
            let detail = format!("too many {what} from your address were refused; this attempt took nothing");
            return Err(Problem::new(RATE_LIMITED, detail).reason(reason).retry_after(1));
        }
        Ok(Some(client))
    }

    /// Learns how a request of this address was answered.
    pub(super) fn note(&self, client: IpAddr, status: StatusCode) {
        if status == StatusCode::UNAUTHORIZED {
            self.suspected.count(client, Instant::now());
        }
    }

    /// A proxy that is not named, or names no client, has one limit for everybody behind it, so an operator must learn of
    /// it.
    fn warn_of(&self, client: IpAddr, rate: Rate) {
        if self.warned.check().is_err() {
            return;
        }
        if self.proxies.contains(client) {
            let header = self.header.as_deref();
            tracing::warn!(
                %client,
                %rate,
                header,
                "a proxy of front.trusted_proxies has reached front.address_rate with requests whose header names no client"
            );
        } else {
            tracing::warn!(
                %client,
                %rate,
                "an address has reached front.address_rate; if it is your proxy, name it in front.trusted_proxies"
            );
        }
    }
}
