//! Cheap limits per address, checked before any other work is done for a request. They are no layer of the router: one would
//! cost each request an allocation and a boxed future.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use axum::response::Response;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use super::addresses::{TrustedProxies, network};
use super::auth::BuyerTokens;
use super::codes::RATE_LIMITED;
use super::keyed_limit::rate_limited;
use super::live::LiveFront;
use super::problem::{Answered, Problem, RefusedFor};
use super::suspected::SuspectedAddresses;
use crate::domain::Rate;

/// The calls of payment providers: they come from few addresses and are signed, so they have no limit of requests. But to
/// verify a forged one costs what a forged token does.
const CALLBACKS: &str = "/v1/payments/callback/";

/// A call that verifies a signature. Others below the same path verify nothing, and count as any request.
fn is_callback(request: &Request<Body>) -> bool {
    let provider = request.uri().path().strip_prefix(CALLBACKS);
    request.method() == Method::POST && provider.is_some_and(|provider| !provider.contains('/'))
}

/// Whether the token of a request may be verified. A sale is shown to anybody, whatever else they send.
fn takes_a_token(path: &str) -> bool {
    path.contains("/orders")
}

fn too_many(what: &str, reason: &'static str) -> Box<Problem> {
    let detail = format!("too many {what} from your address were refused; this attempt took nothing");
    Problem::new(RATE_LIMITED, detail).reason(reason).retry_after(1)
}

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

    /// The client that sends a request, as limits know it. `None` if it comes from a proxy that passes on no address.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        self.address(peer, headers).map(network)
    }

    fn address(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        self.proxies.client(peer, headers, self.header.as_deref())
    }

    /// Admits a request, or refuses it because its address has reached its limit, or sends a token or a signature and others
    /// of that address were refused. Returns the address whose refusals count; `None` if there is no limit.
    pub(super) fn admit(&self, peer: IpAddr, request: &Request<Body>) -> Answered<Option<IpAddr>> {
        if !self.live.address.is_set() {
            return Ok(None);
        }
        let Some(address) = self.address(peer, request.headers()) else { return Ok(None) };
        let client = network(address);
        let is_callback = is_callback(request);
        if !is_callback && let Err(limited) = self.live.address.check(&client) {
            self.warn_of(address, limited.rate);
            return Err(rate_limited(&limited));
        }
        if self.suspected.is_suspected(client, Instant::now()) {
            if is_callback {
                self.live
                    .suspected_callbacks
                    .check(&client)
                    .map_err(|_| too_many("signatures", "refused_signatures"))?;
            } else if self.tokens.must_verify(request.headers()) && takes_a_token(request.uri().path()) {
                self.live.suspected.check(&()).map_err(|_| too_many("tokens", "refused_tokens"))?;
            }
        }
        Ok(Some(client))
    }

    /// Learns how a request of this address was answered.
    pub(super) fn note(&self, client: IpAddr, response: &Response) {
        if response.extensions().get::<RefusedFor>().is_some_and(RefusedFor::took_verifying) {
            self.suspected.count(client, Instant::now());
        }
    }

    /// A proxy that is not named, or names no client, has one limit for everybody behind it, so an operator must learn of
    /// it.
    fn warn_of(&self, address: IpAddr, rate: Rate) {
        if self.warned.check().is_err() {
            return;
        }
        if self.proxies.contains(address) {
            let header = self.header.as_deref();
            tracing::warn!(
                %address,
                %rate,
                header,
                "a proxy of front.trusted_proxies has reached front.address_rate with requests whose header names no client"
            );
        } else {
            tracing::warn!(
                %address,
                %rate,
                "an address has reached front.address_rate; if it is your proxy, name it in front.trusted_proxies"
            );
        }
    }
}
