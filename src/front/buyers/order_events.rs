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

use super::read::found;
use super::views::OrderJson;
use crate::domain::{OrderId, SaleId, UserId};
use crate::front::events::{Open, answer, come_back, last_event_id, no_room};
use crate::front::problem::{Answered, respond};
use crate::front::request::{PathOf, in_path, order_id, sale_id};
use crate::front::state::Buyers;
use crate::gate::Following;
use crate::intake::OrderView;

/// The longest time between two readings: the process that made a change may have died before it announced it.
const LOOK_EVERY: Duration = Duration::from_secs(120);

/// Before an order is read again, whose status was not known.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a stream lasts. Then its client comes back and shows its token again.
const LIFE: Duration = Duration::from_secs(900);

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
    let room = app.room.for_buyer(&user).map_err(no_room)?;
    // Before the first reading, or a change in between would be missed.
    let following = app.changes.follow(&sale, id);
    let view = found(app.intake.view(&sale, &user, id).await)?;
    let sent = last_event_id(headers).map_or(0, |last| steps_known(&view, last));
    if is_over(&view, sent) {
        // An EventSource comes back after each end of a stream, unless it gets this status.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let until = Instant::now() + LIFE.mul_f64(rand::rng().random_range(0.8..=1.0));
    let reader = Reader { app, sale, user, id, following, view, sent, until, _open: room };
    Ok(answer(reader.events(), "no-store"))
}

/// How many states the client knows that had this event last; 0 if the event is not of this order.
fn steps_known(view: &OrderView, last_event_id: &str) -> usize {
    let known = (1..=view.history.len()).find(|nth| event_id(view, *nth).as_deref() == Some(last_event_id));
    known.unwrap_or(0)
}

/// The id of the event with the `nth` state, from 1.
fn event_id(view: &OrderView, nth: usize) -> Option<String> {
    let (status, _) = view.history.get(nth.checked_sub(1)?)?;
    Some(format!("{nth}-{status}"))
}

fn is_over(view: &OrderView, sent: usize) -> bool {
    sent >= view.history.len() && view.status.is_final()
}

/// One client's stream.
struct Reader {
    app: Arc<Buyers>,
    sale: SaleId,
    user: UserId,
    id: OrderId,
    following: Following,
    /// The order as it was read last.
    view: OrderView,
    /// How many of its states the client has.
    sent: usize,
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
            let is_over = is_over(&reader.view, reader.sent);
            (!is_over).then(|| (Ok(come_back("this stream ends, and the order goes on")), None))
        })
    }

    /// The next state; `None` if there is none, or the stream has to end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(id) = event_id(&self.view, self.sent + 1) {
                let shown = self.view.at_step(self.sent);
                self.sent += 1;
                let json = serde_json::to_string(&OrderJson::of(&shown)).ok()?;
                return Some(Event::default().event("order").id(id).data(json));
            }
            if self.view.status.is_final() {
                return None;
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
                    // A history only grows. Should it ever not, the client gets the present state.
                    if !view.history.starts_with(self.view.history.get(..self.sent).unwrap_or_default()) {
                        self.sent = view.history.len().saturating_sub(1);
                    }
                    self.view = view;
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
