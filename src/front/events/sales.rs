//! Streams of sales. A process reads a sale that somebody follows once a second, for all its streams together.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::Event;
use futures_util::stream::{Stream, unfold};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::room::Open;
use super::{come_back, last_event_id};
use crate::domain::SaleId;
use crate::front::problem::Answered;

/// Between two readings of a sale.
const EVERY: Duration = Duration::from_secs(1);

/// A sale at one moment.
#[derive(Debug, Clone)]
pub(in crate::front) struct Frame {
    /// The name of the event.
    pub(in crate::front) event: &'static str,
    /// Frames with the same id say the same, whenever and by whichever process they were read.
    pub(in crate::front) id: Arc<str>,
    /// The data of the event.
    pub(in crate::front) json: Arc<str>,
}

/// A frame older than this is not shown to a client as the present: the sale cannot be read now.
const STALE: Duration = Duration::from_secs(3);

/// A frame, and when it was read.
#[derive(Debug, Clone)]
struct Latest {
    frame: Frame,
    read: Instant,
}

impl Latest {
    fn now(frame: Frame) -> Self {
        Self { frame, read: Instant::now() }
    }
}

/// Reads a sale, again and again.
pub(in crate::front) trait Frames: Send + 'static {
    /// The sale as it is now. An error leaves the frame before in place.
    fn read(&mut self) -> impl Future<Output = Answered<Frame>> + Send;
}

/// The sales that are followed, with their latest frames.
#[derive(Default)]
pub struct SaleStreams {
    sales: Mutex<HashMap<SaleId, watch::Sender<Latest>>>,
}

impl SaleStreams {
    /// The frames of a sale that somebody follows already.
    fn of(&self, sale: &SaleId) -> Option<watch::Receiver<Latest>> {
        self.sales().get(sale).map(watch::Sender::subscribe)
    }

    /// The frames of a sale from this one on. If nobody has followed it before, also the sender, for the task that reads it
    /// from now on.
    fn begin(&self, sale: &SaleId, first: Frame) -> (watch::Receiver<Latest>, Option<watch::Sender<Latest>>) {
        let mut sales = self.sales();
        if let Some(sender) = sales.get(sale) {
            return (sender.subscribe(), None);
        }
        let (sender, receiver) = watch::channel(Latest::now(first));
        sales.insert(sale.clone(), sender.clone());
        (receiver, Some(sender))
    }

    /// Gives all who follow the sale this frame.
    fn renew(&self, sale: &SaleId, frame: Frame) {
        if let Some(sender) = self.sales().get(sale) {
            replace(sender, frame);
        }
    }

    /// Forgets the sale if nobody follows it any more, and says whether it has.
    fn has_ended(&self, sale: &SaleId, sender: &watch::Sender<Latest>) -> bool {
        // Nobody can begin to follow it meanwhile.
        let mut sales = self.sales();
        let ended = sender.receiver_count() == 0;
        if ended {
            sales.remove(sale);
        }
        ended
    }

    fn sales(&self) -> MutexGuard<'_, HashMap<SaleId, watch::Sender<Latest>>> {
        self.sales.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of a sale: the present frame, unless the client knows it, and every later one that says something else.
/// `frames` is used if nobody follows the sale yet, or if it was last read some time ago; its error is the answer.
pub(in crate::front) async fn follow(
    streams: &Arc<SaleStreams>,
    sale: SaleId,
    mut frames: impl Frames,
    client: Client,
) -> Answered<impl Stream<Item = Result<Event, Infallible>> + Send + 'static> {
    let latest = match streams.of(&sale) {
        Some(latest) => {
            let is_stale = latest.borrow().read.elapsed() >= STALE;
            if is_stale {
                streams.renew(&sale, frames.read().await?);
            }
            latest
        }
        None => {
            let (latest, begun) = streams.begin(&sale, frames.read().await?);
            if let Some(sender) = begun {
                tokio::spawn(keep_reading(streams.clone(), sale, frames, sender, client.stop.clone()));
            }
            latest
        }
    };
    Ok(Reader { latest, client, is_first: true }.events())
}

/// Who follows a sale.
pub(in crate::front) struct Client {
    /// The id of the event that it had last.
    known: Option<Arc<str>>,
    stop: CancellationToken,
    /// When it has to come back.
    until: Option<Instant>,
    _open: Open,
}

impl Client {
    /// A client whose request has these headers. It has its room until its stream ends, at the latest when `stop` is
    /// cancelled.
    pub(in crate::front) fn new(headers: &HeaderMap, open: Open, stop: CancellationToken) -> Self {
        Self { known: last_event_id(headers).map(Arc::from), stop, until: None, _open: open }
    }

    /// The same, but only until then: its token does not count for ever.
    pub(in crate::front) fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    /// `None` once its stream has to end.
    async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let until = async {
            match self.until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            () = until => None,
            done = work => Some(done),
        }
    }
}

/// Reads the sale while somebody follows it.
async fn keep_reading(
    streams: Arc<SaleStreams>,
    sale: SaleId,
    mut frames: impl Frames,
    sender: watch::Sender<Latest>,
    stop: CancellationToken,
) {
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if streams.has_ended(&sale, &sender) {
            return;
        }
        let Ok(frame) = frames.read().await else { continue };
        replace(&sender, frame);
    }
}

fn replace(sender: &watch::Sender<Latest>, frame: Frame) {
    sender.send_if_modified(|present| {
        let is_new = present.frame.id != frame.id;
        // Replaced in any case, so that the next client gets the current server time.
        *present = Latest::now(frame);
        is_new
    });
}

/// One client's stream.
struct Reader {
    latest: watch::Receiver<Latest>,
    client: Client,
    is_first: bool,
}

impl Reader {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(Some(self), |reader| async {
            let mut reader = reader?;
            let Some(Frame { event, id, json }) = reader.next().await else {
                return Some((Ok(come_back("this stream ends, and the sale goes on")), None));
            };
            Some((Ok(Event::default().event(event).id(&*id).data(&*json)), Some(reader)))
        })
    }

    /// The next frame that the client does not know; `None` once the stream has to end.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if !std::mem::take(&mut self.is_first) {
                self.client.run(self.latest.changed()).await?.ok()?;
            }
            let frame = self.latest.borrow_and_update().frame.clone();
            if self.client.known.as_ref() != Some(&frame.id) {
                self.client.known = Some(frame.id.clone());
                return Some(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::super::StreamRoom;
    use super::*;
    use crate::front::codes::STATUS_UNAVAILABLE;
    use crate::front::problem::Problem;

    fn frame() -> Frame {
        Frame { event: "sale", id: "1".into(), json: "{}".into() }
    }

    fn client() -> Client {
        let open = StreamRoom::new(10).for_operator().expect("room");
        Client::new(&HeaderMap::new(), open, CancellationToken::new())
    }

    struct Unreadable;

    impl Frames for Unreadable {
        async fn read(&mut self) -> Answered<Frame> {
            Err(Problem::new(STATUS_UNAVAILABLE, "away"))
        }
    }

    struct Changed;

    impl Frames for Changed {
        async fn read(&mut self) -> Answered<Frame> {
            Ok(Frame { event: "sale", id: "2".into(), json: r#"{"is":"new"}"#.into() })
        }
    }

    /// Nobody may take the sale of ten minutes ago, and its server time, for the present.
    #[tokio::test]
    async fn a_sale_that_was_not_read_for_some_seconds_is_read_before_it_is_shown() {
        let (streams, sale) = (Arc::<SaleStreams>::default(), SaleId::parse("shoes").expect("an id"));
        let (_latest, sender) = streams.begin(&sale, frame());
        assert!(follow(&streams, sale.clone(), Unreadable, client()).await.is_ok());
        sender.expect("the first").send_modify(|latest| latest.read -= STALE);
        assert!(follow(&streams, sale.clone(), Unreadable, client()).await.is_err());
        let events = follow(&streams, sale, Changed, client()).await.expect("a stream");
        let shown = Box::pin(events).next().await.expect("an event").expect("never fails");
        assert!(format!("{shown:?}").contains("new"), "{shown:?}");
    }

    /// An operator's token counts for minutes, and a stream might go on for days.
    #[tokio::test]
    async fn a_stream_ends_when_its_client_has_to_show_its_token_again() {
        let (_sender, latest) = watch::channel(Latest::now(frame()));
        let client = client().until(Instant::now() + Duration::from_millis(20));
        let events: Vec<_> = Reader { latest, client, is_first: true }.events().collect().await;
        assert_eq!(events.len(), 2, "the present frame, and the end");
    }
}
