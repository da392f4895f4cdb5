//! A cheap limit per address, checked before any other work is done for a request.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::codes::RATE_LIMITED;
use super::problem::Problem;
use super::server::Peer;
use crate::domain::{Limited, Rate};

/// Requests between two removals of idle addresses.
const TIDY_EVERY: u64 = 50_000;

/// The limit per address, and where the address is read from.
#[derive(Debug, Clone)]
pub struct ThrottleSettings {
    /// Requests per address; `None` for no limit.
    pub rate: Option<Rate>,
    /// A header set by our own proxy; its last address is the client's. Without it, the peer's address counts.
    pub header: Option<String>,
}

pub(super) struct Throttle {
    limiter: DefaultKeyedRateLimiter<IpAddr>,
    clock: DefaultClock,
    rate: Rate,
    header: Option<String>,
    seen: std::sync::atomic::AtomicU64,
}

impl Throttle {
    pub(super) fn new(settings: &ThrottleSettings) -> Option<Arc<Self>> {
        let rate = settings.rate?;
        let burst = NonZeroU32::new(rate.count())?;
        let every = Duration::from_secs(rate.seconds().into()) / rate.count();
        Some(Arc::new(Self {
            limiter: RateLimiter::keyed(Quota::with_period(every)?.allow_burst(burst)),
            clock: DefaultClock::default(),
            rate,
            header: settings.header.clone(),
            seen: Default::default(),
        }))
    }

    fn client(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr> {
        let Some(header) = &self.header else { return peer.map(network) };
        // Our proxy wrote the last address. Anyone can send the addresses before it, with any bytes. Clients whose
        // address cannot be read share the bucket of their connection.
        let passed = headers.get_all(header.as_str()).iter().next_back().and_then(|value| {
            let last = value.as_bytes().rsplit(|byte| *byte == b',').next()?.trim_ascii();
            let last = std::str::from_utf8(last).ok()?;
            let socket = || last.parse::<SocketAddr>().map(|socket| socket.ip());
            last.parse().or_else(|_| socket()).ok()
        });
        passed.or(peer).map(network)
    }
}

/// An IPv6 client has 2^64 addresses, so the limit applies to its /64 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

/// Middleware that refuses requests above the limit of their address.
pub(super) async fn throttle(
    State(throttle): State<Arc<Throttle>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let Some(client) = throttle.client(request.headers(), peer) else { return next.run(request).await };
    if throttle.seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % TIDY_EVERY == TIDY_EVERY - 1 {
        throttle.limiter.retain_recent();
    }
    match throttle.limiter.check_key(&client) {
        Ok(()) => next.run(request).await,
        Err(not_until) => {
            let wait = not_until.wait_time_from(throttle.clock.now());
            let limited = Limited { of_user: false, rate: throttle.rate, retry_after: wait };
            rate_limited(&limited, "address").of_request(request.headers()).into_response()
        }
    }
}

/// 429, with the limit and the time to retry. `whose` is `address`, `user` or `sale`.
pub(super) fn rate_limited(limited: &Limited, whose: &str) -> Box<Problem> {
    let Limited { rate, retry_after, .. } = limited;
    let seconds = u64::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(1).max(1);
    Problem::new(RATE_LIMITED, format!("more than {rate} per {whose}; this attempt took nothing"))
        .with("limit", rate.to_string())
        .retry_after(seconds)
        .header("ratelimit-policy", format!("\"{whose}\";q={};w={}", rate.count(), rate.seconds()))
        .header("ratelimit", format!("\"{whose}\";r=0;t={seconds}"))
}
