//! Server-sent events, for buyers and operators alike: how a stream begins, is kept open and ends, and how many there may
//! be.

mod room;
mod sales;

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::Stream;
use rand::RngExt as _;
use tokio::time::Instant;

pub use room::StreamRoom;
pub(super) use room::{NoRoom, Open};
pub use sales::SaleStreams;
pub(super) use sales::{Client, Frame, Frames, follow};

use super::codes::TOO_MANY_STREAMS;
use super::lasting::Lasts;
use super::problem::Problem;

/// A comment after this time without an event: proxies close what is silent.
const COMMENT_AFTER: Duration = Duration::from_secs(15);

/// When a client should come back after the front has ended its stream.
const COME_BACK_AFTER: Duration = Duration::from_secs(2);

/// `Retry-After` in seconds, where there is no more room.
const WHEN_FULL: u64 = 10;

/// The longest time of a stream for which a token was shown.
const LIFE: Duration = Duration::from_secs(900);

/// When such a stream ends, so that its client comes back and shows its token again. Not all at the same moment.
pub(super) fn ends_at() -> Instant {
    Instant::now() + LIFE.mul_f64(rand::rng().random_range(0.8..=1.0))
}

pub(super) fn answer(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
    caching: &'static str,
) -> Response {
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_AFTER)).into_response();
    response.extensions_mut().insert(Lasts);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    // nginx would collect events until its buffer is full.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The last words of a stream that the front ends.
pub(super) fn come_back(why: &str) -> Event {
    Event::default().retry(COME_BACK_AFTER).comment(why)
}

/// The event that the client had last, as it says.
pub(super) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id")?.to_str().ok()
}

pub(super) fn no_room(why: NoRoom) -> Box<Problem> {
    let (reason, what) = match why {
        NoRoom::Front => ("front", "read the status instead, or come back later"),
        NoRoom::Buyer => ("user", "you have as many streams open as one buyer may have; close one"),
        NoRoom::Address => {
            ("address", "your address has as many streams open as one may have; read the status instead")
        }
    };
    Problem::new(TOO_MANY_STREAMS, what).reason(reason).retry_after(WHEN_FULL)
}
