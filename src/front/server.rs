//! A listener with limits: on header time, request time and connections. What `axum::serve` leaves
//! open for ever is closed here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::problem::{INTERNAL, OUTCOME_UNKNOWN, Problem, STATUS_UNAVAILABLE, sent_id};

/// Milliseconds for which a peer may leave an answer unread.
#[cfg(target_os = "linux")]
const UNREAD_MS: u32 = 30_000;

#[derive(Debug, Clone, Copy)]
pub struct ServerSettings {
    /// Connections at once; more wait in the kernel's backlog.
    pub connections: usize,
    /// How long a request's headers may take, and how long a connection may idle.
    pub header_within: Duration,
    /// How long an answer may take.
    pub request_within: Duration,
    /// How long requests under way may take after `stop`.
    pub drain: Duration,
}

/// Whose connection a request came with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves until `stop`, then finishes what is under way, and cuts off what is not done by then.
pub async fn serve(listener: TcpListener, router: Router, settings: ServerSettings, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(settings.connections));
    loop {
        let accepted = stop.run_until_cancelled(accept(&listener, &slots)).await;
        let Some((stream, peer, slot)) = accepted else { break };
        // Small answers must not wait for more to send.
        let _ = stream.set_nodelay(true);
        // A peer that never reads its answers must not hold its place for ever.
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD_MS);
        let (router, watcher, stop) = (router.clone(), graceful.watcher(), stop.clone());
        tokio::spawn(async move {
            // Serving takes ten kilobytes and more, and many connections are opened that say nothing for long:
            // those who wait for noon. Until the first byte there is the socket and no more. Peeked at, because
            // `readable` may say so when nothing has come.
            let mut byte = [0];
            let first = tokio::time::timeout(settings.header_within, stream.peek(&mut byte));
            if let Some(Ok(Ok(1))) = stop.run_until_cancelled(first).await {
                Box::pin(serve_one(stream, peer, router, settings, watcher)).await;
            }
            drop(slot);
        });
    }
    drop(listener);
    if tokio::time::timeout(settings.drain, graceful.shutdown()).await.is_err() {
        tracing::warn!(after = ?settings.drain, "requests were still under way when the drain ended");
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    settings: ServerSettings,
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        answer(router.clone(), request, settings.request_within)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_within)
        .max_headers(64)
        .serve_connection(TokioIo::new(stream), service);
    // A peer that breaks its connection is not our trouble.
    let _ = watcher.watch(connection).await;
}

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
                // Out of file descriptors, most likely: some connection has to end first.
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(router: Router, request: Request<Body>, within: Duration) -> Result<Response, Infallible> {
    let may_have_acted = request.method() == Method::POST;
    let id = sent_id(request.headers());
    let work = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
    Ok(match tokio::time::timeout(within, work).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_)) => {
            metrics::counter!("front_panics_total").increment(1);
            // The order may be taken, if it was one.
            let kind = if may_have_acted { OUTCOME_UNKNOWN } else { INTERNAL };
            Problem::new(kind, "a fault of the server's; repeat with the same key").named(id).into_response()
        }
        Err(_) if may_have_acted => {
            let detail = "no answer in time; repeat with the same Idempotency-Key, it is safe";
            Problem::new(OUTCOME_UNKNOWN, detail).named(id).retry_after(1).into_response()
        }
        Err(_) => {
            Problem::new(STATUS_UNAVAILABLE, "no answer in time").named(id).retry_after(1).into_response()
        }
    })
}
