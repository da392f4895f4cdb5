//! `GET /v1/sales/{sale}/orders/{id}/events`: each state that an order reaches, until nothing can follow.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use rand::RngExt as _;
use tokio::time::Instant;

use super::read::{found, must_exist};
use super::views::OrderJson;
use crate::domain::{OrderId, OrderStatus, SaleId, UserId};
use crate::front::events::{Open, answer, come_back, ends_at, last_event_id, no_room};
use crate::front::problem::{Answered, respond};
use crate::front::request::{PathOf, in_path, order_id, sale_id};
use crate::front::state::Buyers;
use crate::gate::Following;
use crate::intake::OrderView;

/// The longest time between two readings: the process that made a change may have died before it announced it.
const LOOK_EVERY: Duration = Duration::from_secs(120);

/// Before an order is read again, whose status was not known.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) async fn order_events(
    State(app): State<Arc<Buyers>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
) -> Response {
    respond(open(app, path, &headers).await, &headers)
}

async fn open(app: Arc<Buyers>, path: PathOf<(String, String)>, headers: &HeaderMap) -> Answered {
    let user = app.tokens.user(headers).await?;
    app.live.within_rate(&user)?;
    let (sale, id) = in_path(path)?;
    let (sale, id) = (sale_id(&sale)?, order_id(&id)?);
    must_exist(&app, &sale).await?;
    let room = app.room.for_buyer(&user).map_err(no_room)?;
    // Before the first reading, or a change in between would be missed.
    let following = app.changes.follow(&sale, id);
    let view = found(app.intake.view(&sale, &user, id).await)?;
    let has = match last_event_id(headers) {
        None => Has::Shown { view, sent: 0 },
        Some(last) => match steps_known(&view, last) {
            Some(sent) => Has::Shown { view, sent },
            None => Has::Said(last.to_owned()),
        },
    };
    if has.everything() {
        // An EventSource comes back after each end of a stream, unless it gets this status.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reader = Reader { app, sale, user, id, following, has, until: ends_at(), _open: room };
    Ok(answer(reader.events(), "no-store"))
}

/// How many states of this reading a client has that had this event last: 0 if the event is not of this order. `None` if
/// the reading is older than the event: the gate's entry of an order stays `accepted` until the order is settled, and
/// a client that read while Redis was away has seen the row already.
fn steps_known(view: &OrderView, last_event_id: &str) -> Option<usize> {
    let known = (1..=view.history.len()).find(|nth| event_id(view, *nth).as_deref() == Some(last_event_id));
    let is_in_flight = view.durability.is_some();
    if known.is_none() && is_in_flight && is_later_state(last_event_id) {
        None
    } else {
        Some(known.unwrap_or(0))
    }
}

/// Whether an event with this id can follow on that of an order in flight.
fn is_later_state(event_id: &str) -> bool {
    let Some((nth, status)) = event_id.split_once('-') else { return false };
    let is_later = nth.parse::<usize>().is_ok_and(|nth| nth > 1);
    is_later && status.parse::<OrderStatus>().is_ok_and(|status| status != OrderStatus::Accepted)
}

/// The id of the event with the `nth` state, from 1.
fn event_id(view: &OrderView, nth: usize) -> Option<String> {
    let (status, _) = view.history.get(nth.checked_sub(1)?)?;
    Some(format!("{nth}-{status}"))
}

/// What the client has.
enum Has {
    /// An event with this id, as it says. Every reading so far is older.
    Said(String),
    /// So many states of the order as it was read last.
    Shown { view: OrderView, sent: usize },
}

impl Has {
    /// Whether nothing can follow.
    fn everything(&self) -> bool {
        matches!(self, Self::Shown { view, sent } if *sent >= view.history.len() && view.status.is_final())
    }

    /// The same after this reading; `None` if the client already knows more.
    fn after(&self, view: OrderView) -> Option<Self> {
        let sent = match self {
            Self::Said(last) => steps_known(&view, last)?,
            Self::Shown { view: before, sent } => {
                let last = event_id(before, *sent);
                match last.map_or(Some(0), |last| steps_known(&view, &last))? {
                    // A history only grows. Should it ever not, the client gets the present state.
                    0 => view.history.len().saturating_sub(1),
                    known => known,
                }
            }
        };
        Some(Self::Shown { view, sent })
    }
}

/// One client's stream.
struct Reader {
    app: Arc<Buyers>,
    sale: SaleId,
    user: UserId,
    id: OrderId,
    following: Following,
    has: Has,
    until: Instant,
    _open: Open,
}

impl Reader {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(Some(self), |reader| async {
            let mut reader = reader?;
            if let Some(event) = reader.next().await {
                return Some((Ok(event), Some(reader)));
            }
            let is_over = reader.has.everything();
            (!is_over).then(|| (Ok(come_back("this stream ends, and the order goes on")), None))
        })
    }

    /// The next state; `None` if there is none, or the stream has to end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Has::Shown { view, sent } = &mut self.has {
                if let Some(id) = event_id(view, *sent + 1) {
                    let shown = view.at_step(*sent);
                    *sent += 1;
                    let json = serde_json::to_string(&OrderJson::of(&shown)).ok()?;
                    return Some(Event::default().event("order").id(id).data(json));
                }
                if view.status.is_final() {
                    return None;
                }
            }
            let longest = LOOK_EVERY.mul_f64(rand::rng().random_range(0.5..=1.0));
            self.within_life(async |reader| {
                let _ = tokio::time::timeout(longest, reader.following.changed()).await;
            })
            .await?;
            self.within_life(Self::read).await?;
        }
    }

    /// Reads the order, as soon as its status is known.
    async fn read(&mut self) {
        loop {
            // On the heap, and only now: a reading is large, and most streams wait most of the time.
            match Box::pin(self.app.intake.view(&self.sale, &self.user, self.id)).await {
                Ok(Some(view)) => {
                    // An older reading changes nothing: when the order is settled, that is announced.
                    if let Some(has) = self.has.after(view) {
                        self.has = has;
                    }
                    return;
                }
                // The client keeps what it knows, as long as nothing else is known.
                Ok(None) | Err(_) => tokio::time::sleep(TRY_AGAIN_AFTER).await,
            }
        }
    }

    /// `None` if the stream has to end before the work does.
    async fn within_life(&mut self, work: impl AsyncFnOnce(&mut Self)) -> Option<()> {
        let (stop, until) = (self.app.stop.clone(), self.until);
        let work = tokio::time::timeout_at(until, work(self));
        stop.run_until_cancelled(work).await?.ok()
    }
}
