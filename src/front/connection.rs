//! One connection: served while requests come, and parked while it is silent. A served connection takes about eleven
//! kilobytes, most of them for the buffer that heads are read into; a parked one takes its socket and its task, and one
//! with a [lasting] answer what that needs.
//! Thousands of buyers keep their connections open between two looks at the sale.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::lasting::{self, Lasts};

/// The longest head of a request, in bytes; a longer one gets 431.
const HEAD: usize = 16 * 1024;

/// A connection is parked when nothing has moved on it for this long. Serving it again costs microseconds, so this is
/// only long enough that a client that sends request after request is never parked.
const PARK_AFTER: Duration = Duration::from_millis(100);

/// A request that was open at so many looks is a long poll, and is looked at less often: with ten thousand of them, ten looks
/// a second cost a third of a core.
const LOOKS_AT_A_SHORT_REQUEST: u32 = 20;
const LOOK_AT_A_LONG_REQUEST: Duration = Duration::from_secs(1);

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) header_within: Duration,
    /// Bytes that are read for one request. Its head and its body have limits of their own, but a client may put any number
    /// of bytes around the pieces of a body, and each of them is parsed.
    pub(super) unanswered: usize,
}

/// Serves a connection until its peer or `stop` ends it, or until it has said nothing, or only a part of a head, for
/// `header_within`. After `stop` the open request is still answered.
pub(super) async fn serve<A, F>(mut stream: TcpStream, limits: Limits, stop: &CancellationToken, answer: A)
where
    A: Fn(Request<Body>) -> F + Clone,
    F: Future<Output = Response>,
{
    let header_within = limits.header_within;
    let mut unread = Bytes::new();
    while !unread.is_empty()
        || stop.run_until_cancelled(first_byte(&stream, header_within)).await == Some(true)
    {
        let served = serve_until_silent(stream, unread, limits, stop, answer.clone());
        match Box::pin(served).await {
            Left::Silent(silent, of_next) => (stream, unread) = (silent, of_next),
            Left::Lasting(stream, answer) => {
                // A peer that goes away is not our error.
                let _ = Box::pin(lasting::write(stream, answer)).await;
                return;
            }
            Left::Ended => return,
        }
    }
}

/// Whether the peer sends anything in time. Peeks, because `readable` may resolve although nothing has arrived.
async fn first_byte(stream: &TcpStream, within: Duration) -> bool {
    let mut byte = [0];
    matches!(tokio::time::timeout(within, stream.peek(&mut byte)).await, Ok(Ok(1)))
}

/// A connection that hyper serves no more.
enum Left {
    /// With what was read of its next request.
    Silent(TcpStream, Bytes),
    /// Its request has an answer that lasts.
    Lasting(TcpStream, Response),
    Ended,
}

/// Where an answer that lasts leaves hyper.
#[derive(Clone)]
struct Exit(Arc<Mutex<Option<oneshot::Sender<Response>>>>);

impl Exit {
    /// The answer, for hyper to write. One that lasts is given away, and then this waits until the connection is taken from
    /// hyper.
    async fn unless_it_lasts(&self, mut answer: Response) -> Response {
        if answer.extensions_mut().remove::<Lasts>().is_none() {
            return answer;
        }
        let Some(to) = self.taken() else { return answer };
        match to.send(answer) {
            Ok(()) => std::future::pending().await,
            // After `stop`.
            Err(answer) => answer,
        }
    }

    fn taken(&self) -> Option<oneshot::Sender<Response>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Serves a connection until it is silent, has ended, or has an answer that lasts.
async fn serve_until_silent<A, F>(
    stream: TcpStream,
    unread: Bytes,
    limits: Limits,
    stop: &CancellationToken,
    answer: A,
) -> Left
where
    A: Fn(Request<Body>) -> F,
    F: Future<Output = Response>,
{
    let traffic = Arc::new(Traffic::default());
    let open = Arc::new(());
    let request_open = open.clone();
    let (given_away, leaves) = oneshot::channel();
    let exit = Exit(Arc::new(Mutex::new(Some(given_away))));
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let exit = lasting::takes_chunks(&request).then(|| exit.clone());
        let (response, open) = (answer(request.map(Body::new)), request_open.clone());
        async move {
            let response = match exit {
                Some(exit) => exit.unless_it_lasts(response.await).await,
                None => response.await,
            };
            Ok::<_, Infallible>(response.map(|body| OpenBody { body, _open: open }))
        }
    });
    let watched =
        Watched { stream, unread, traffic: traffic.clone(), unanswered: 0, most: limits.unanswered };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_within)
        .max_header_size(HEAD)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(watched), service);
    let answer = tokio::select! {
        // In this order, so that an answer which the service has given away is always taken.
        biased;
        // A connection broken by its peer is not our error.
        _ = &mut connection => return Left::Ended,
        Ok(answer) = leaves => Some(answer),
        () = traffic.is_silent(&open) => None,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            let _ = connection.await;
            return Left::Ended;
        }
    };
    let parts = connection.into_parts();
    let stream = parts.io.into_inner().stream;
    match answer {
        Some(answer) => Left::Lasting(stream, answer),
        // A copy: even what is empty would keep the whole buffer.
        None => Left::Silent(stream, Bytes::copy_from_slice(&parts.read_buf)),
    }
}

/// What has last moved on a connection.
#[derive(Default)]
struct Traffic {
    last: AtomicU8,
    moves: AtomicU64,
}

/// Bytes of a request were read. Also the state of a new connection.
const READ: u8 = 0;
/// Bytes of a response were written.
const WRITTEN: u8 = 1;
/// And then all that hyper had to write: it flushes only after its last byte.
const FLUSHED: u8 = 2;

impl Traffic {
    fn note(&self, last: u8) {
        self.last.store(last, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn flushed(&self) {
        let _ = self.last.compare_exchange(WRITTEN, FLUSHED, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn moved(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Waits until nothing moves. The service has the second clone of `open`; each open request, or response that is not
    /// sent, has another.
    async fn is_silent(&self, open: &Arc<()>) {
        let (mut before, mut looks_while_open) = (self.moved(), 0);
        loop {
            let is_long = looks_while_open > LOOKS_AT_A_SHORT_REQUEST;
            tokio::time::sleep(if is_long { LOOK_AT_A_LONG_REQUEST } else { PARK_AFTER }).await;
            let (now, is_open) = (self.moved(), Arc::strong_count(open) > 2);
            if now == before && !is_open && self.is_answered() {
                return;
            }
            before = now;
            looks_while_open = if is_open { looks_while_open + 1 } else { 0 };
        }
    }

    /// Whether everything that was read has been answered. If the peer has sent a part of its next request together
    /// with the last one, hyper holds that part.
    fn is_answered(&self) -> bool {
        self.last.load(Ordering::Relaxed) == FLUSHED
    }
}

/// A stream that notes its traffic, and begins with bytes that were read from it before.
struct Watched {
    stream: TcpStream,
    unread: Bytes,
    traffic: Arc<Traffic>,
    /// Bytes that were read since the last answer.
    unanswered: usize,
    most: usize,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        if self.unread.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        } else {
            let some = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread.split_to(some));
        }
        let read = into.filled().len() - before;
        if read > 0 {
            self.traffic.note(READ);
        }
        self.unanswered += read;
        if self.unanswered > self.most {
            return Poll::Ready(Err(io::Error::other("too much for one request")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.traffic.note(WRITTEN);
        self.unanswered = 0;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.traffic.note(WRITTEN);
        self.unanswered = 0;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.traffic.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A body of a response; its request is open until hyper has taken all of it.
struct OpenBody {
    body: Body,
    _open: Arc<()>,
}

impl HttpBody for OpenBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
