//! A listener with limits on header time, request time and connections. `axum::serve` has none of these.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::addresses::{ClientAddress, Connections, TrustedProxies};
use super::body::LARGE;
use super::codes::{INTERNAL, OUTCOME_UNKNOWN, STATUS_UNAVAILABLE};
use super::connection::{self, Limits};
use super::header_names::{PREFER, TRACEPARENT};
use super::problem::{Problem, identifying};
use super::routes::{Route, method_label};
use super::throttle::Throttle;
use super::traceparent::{trace_context, traceparent};
use crate::domain::TraceContext;
use crate::trace::{self, RequestSpan};

/// How long a peer may leave a response unread, in milliseconds.
#[cfg(target_os = "linux")]
const UNREAD_MS: u32 = 30_000;

/// Bytes of a connection for heads, and around the pieces of a body, until a request is answered.
const UNANSWERED: usize = 64 * 1024;

/// Headers of a request; more get 431. Not a limit of hyper's, which takes and clears space for so many each time.
const MOST_HEADERS: usize = 64;

/// How the path of a stream of events ends.
const STREAM: &str = "/events";

/// The name and the limits of a listener.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Its label in the metrics.
    pub name: &'static str,
    /// Open connections; more wait in the kernel's backlog.
    pub connections: usize,
    /// Open connections of one address; more are closed. `None` for no bound.
    pub of_address: Option<usize>,
    /// Has no such bound, because it carries the connections of many.
    pub proxies: TrustedProxies,
    /// The largest body of an order, in bytes.
    pub body_limit: usize,
    /// How long a request's headers may take, and how long a connection may idle.
    pub header_within: Duration,
    /// How long a response may take.
    pub request_within: Duration,
    /// How long open requests may take after `stop`.
    pub drain: Duration,
}

/// What a listener serves.
#[derive(Clone)]
pub struct App {
    pub(super) router: Router,
    /// The limits per address; `None` for none.
    pub(super) throttle: Option<Arc<Throttle>>,
}

/// Serves until `stop`, then lets open requests finish, and cuts off those that are still open after the drain.
pub async fn serve(listener: TcpListener, app: App, settings: ServerSettings, stop: CancellationToken) {
    let open = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(settings.connections));
    let of_address = settings.of_address.map(|most| Connections::new(most, settings.proxies.clone()));
    let settings = Arc::new(settings);
    let connections = metrics::gauge!("doorbuster_http_connections", "listener" => settings.name);
    loop {
        let accepted = stop.run_until_cancelled(accept(&listener, &slots)).await;
        let Some((stream, peer, slot)) = accepted else { break };
        let Some(place) = of_address.as_ref().map_or(Some(None), |all| all.place(peer.ip())) else {
            metrics::counter!("doorbuster_front_connections_refused_total").increment(1);
            continue;
        };
        // Without this, a small response would wait for more data to send.
        let _ = stream.set_nodelay(true);
        // Without this, a peer that never reads would hold its connection for ever.
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD_MS);
        let (app, settings, stop) = (app.clone(), settings.clone(), stop.clone());
        let connection = Counted::new(&connections);
        open.spawn(async move {
            let limits = Limits {
                header_within: settings.header_within,
                unanswered: UNANSWERED + 2 * LARGE.max(settings.body_limit),
            };
            let request_within = settings.request_within;
            let answer = |request| answer_timed(app.clone(), peer.ip(), request, request_within);
            connection::serve(stream, limits, &stop, answer).await;
            drop((slot, place, connection));
        });
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(settings.drain, open.wait()).await.is_err() {
        tracing::warn!(after = ?settings.drain, "requests were still open when the drain ended");
    }
}

/// An open connection in the gauge.
struct Counted(metrics::Gauge);

impl Counted {
    fn new(gauge: &metrics::Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// The next connection, accepted once a slot is free.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            std::future::pending::<()>().await;
            continue;
        };
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, slot),
            Err(error) => {
                // Most likely there are no file descriptors left: another connection has to end first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// As [`answer_within_limits`], and records how long it took.
async fn answer_timed(app: App, peer: IpAddr, mut request: Request<Body>, within: Duration) -> Response {
    let (begun, method, route) = (Instant::now(), request.method().clone(), Route::of(request.uri().path()));
    let has_too_many_headers = request.headers().len() > MOST_HEADERS;
    let span = traced(&mut request);
    let mut response = if has_too_many_headers {
        // As hyper answers a head that is too long.
        (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, [(header::CONNECTION, "close")]).into_response()
    } else {
        answer_within_limits(app, peer, request, within).await
    };
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && let Some(allowed) = route.allows()
    {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    }
    let took = begun.elapsed();
    route.record(&method, response.status(), took);
    if let Some(span) = span {
        span.end(method_label(&method), route.label(), (response.status().as_u16(), took));
    }
    response
}

/// The request's span, if this process records traces. What is done for a recorded request finds its parent in the
/// `traceparent` of the request, in place of the caller's.
fn traced(request: &mut Request<Body>) -> Option<RequestSpan> {
    // First, so that a request costs nothing where none is recorded.
    if !trace::is_on() {
        return None;
    }
    let caller = trace_context(request.headers());
    let span = RequestSpan::begin(traceparent(request.headers()), is_patient(request))?;
    // Where the request itself is not recorded, nothing that is done for it is, whatever its caller asks for.
    let unrecorded = || caller.map(|caller| TraceContext { is_sampled: false, ..caller });
    if let Some(context) = span.context().or_else(unrecorded)
        && let Ok(value) = HeaderValue::from_str(&context.to_string())
    {
        request.headers_mut().insert(&TRACEPARENT, value);
    }
    Some(span)
}

/// Whether the caller waits for something to happen, so that a long time says nothing.
fn is_patient(request: &Request<Body>) -> bool {
    request.headers().contains_key(&PREFER)
        || request.uri().query().is_some_and(|query| query.contains("wait="))
}

/// As [`answer`], unless the address has reached a limit.
async fn answer_within_limits(
    app: App,
    peer: IpAddr,
    mut request: Request<Body>,
    within: Duration,
) -> Response {
    let Some(throttle) = app.throttle else { return answer(app.router, request, within).await };
    // Only for streams, because it takes an allocation.
    if request.uri().path().ends_with(STREAM) {
        let client = ClientAddress(throttle.client(peer, request.headers()));
        request.extensions_mut().insert(client);
    }
    let client = match throttle.admit(peer, &request) {
        Ok(client) => client,
        Err(problem) => return problem.of_request(request.headers()).into_response(),
    };
    let response = answer(app.router, request, within).await;
    if let Some(client) = client {
        throttle.note(client, &response);
    }
    response
}

/// The router's response, or a problem if it panics or takes too long.
async fn answer(router: Router, request: Request<Body>, within: Duration) -> Response {
    let may_have_acted = request.method() == Method::POST;
    let headers = identifying(request.headers());
    let work = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
    match tokio::time::timeout(within, work).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_)) => {
            metrics::counter!("doorbuster_front_panics_total").increment(1);
            // If the request placed an order, the order may have been taken.
            let kind = if may_have_acted { OUTCOME_UNKNOWN } else { INTERNAL };
            Problem::new(kind, "the server failed; repeat with the same Idempotency-Key, it is safe")
                .of_request(&headers)
                .into_response()
        }
        Err(_) if may_have_acted => {
            let detail = "no response in time; repeat with the same Idempotency-Key, it is safe";
            Problem::new(OUTCOME_UNKNOWN, detail).of_request(&headers).retry_after(1).into_response()
        }
        Err(_) => Problem::new(STATUS_UNAVAILABLE, "no response in time")
            .of_request(&headers)
            .retry_after(1)
            .into_response(),
    }
}

#[cfg(all(test, feature = "traces"))]
mod tests {
    use super::*;

    /// However many ask for their requests to be recorded, what is done for the others is not recorded either.
    #[test]
    fn what_a_request_does_is_recorded_only_with_the_request() {
        trace::record_what_callers_ask_for();
        let asks = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let recorded = (0..2_000).filter(|_| {
            let mut request = Request::new(Body::empty());
            request.headers_mut().insert(&TRACEPARENT, HeaderValue::from_static(asks));
            let is_recorded = traced(&mut request).is_some_and(|span| span.context().is_some());
            let context = trace_context(request.headers()).expect("a place in the trace");
            assert_eq!(context.is_sampled, is_recorded);
            assert_eq!(context.trace, TraceContext::parse(asks).expect("valid").trace);
            is_recorded
        });
        assert!((1..2_000).contains(&recorded.count()));
    }
}
