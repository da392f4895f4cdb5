//! Gives one endpoint what is due: orders and sales at the same time, and the events of each one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::time::Instant;
use uuid::Uuid;

use super::message::{Message, Orders};
use crate::domain::Millis;
use crate::maintenance::MaintenanceError;
use crate::store::{EndpointState, NotTaken, Store, WebhookDelivery};
use crate::webhook::{EndpointUrl, NotDelivered, Secret, Sender, Signed};

/// Orders and sales of one round.
const SUBJECTS: u64 = 200;

/// Requests to one endpoint at the same time.
const AT_ONCE: usize = 16;

/// After so many failures without a success a round ends: the endpoint is away, and the rest would fail as well.
const AWAY_AFTER: usize = 8;

/// The time until each further try, in seconds: three days and nine hours in all. Then a delivery is given up.
const AGAIN_AFTER_S: [i64; 10] = [5, 30, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// An endpoint that takes nothing for so long is switched off.
const OFF_AFTER: Duration = Duration::from_secs(5 * 86_400);

/// The shortest and the longest pause of an endpoint that takes nothing.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The pause after an error of the database.
const DATABASE_PAUSE: Duration = Duration::from_secs(15);

pub(super) struct Courier {
    pub(super) store: Store,
    pub(super) sender: Sender,
    pub(super) endpoint: String,
    pub(super) url: EndpointUrl,
    pub(super) secrets: Vec<Secret>,
    /// Whether it took nothing when this began.
    pub(super) is_failing: bool,
}

/// What an endpoint has taken, and what it has not.
#[derive(Default)]
struct Outcome {
    taken: Vec<(Uuid, i32)>,
    not_taken: Vec<NotTaken>,
    /// Of events whose order this build cannot read, which says nothing about the endpoint.
    unreadable: Vec<NotTaken>,
    is_gone: bool,
}

/// A round's successes and failures so far.
struct Tally {
    clock: Clock,
    taken: AtomicUsize,
    failed: AtomicUsize,
}

impl Tally {
    fn is_away(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0 && self.failed.load(Ordering::Relaxed) >= AWAY_AFTER
    }
}

/// The database's clock. Receivers refuse what is more than five minutes old, and a host's clock may be wrong.
#[derive(Clone, Copy)]
struct Clock {
    time: Millis,
    read: Instant,
}

impl Clock {
    async fn read(store: &Store) -> Result<Self, MaintenanceError> {
        let read = Instant::now();
        Ok(Self { time: store.read_clock().await?, read })
    }

    fn now(self) -> Millis {
        self.time.plus(self.read.elapsed())
    }
}

impl Courier {
    /// Returns when nothing is due, or after a pause if the endpoint takes nothing or the database does not record what it
    /// takes: that would be sent again at once.
    pub(super) async fn run(self) {
        loop {
            match self.round().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, endpoint = self.endpoint, "webhooks wait for the database");
                    tokio::time::sleep(DATABASE_PAUSE).await;
                    return;
                }
            }
        }
    }

    /// Whether more may be due.
    async fn round(&self) -> Result<bool, MaintenanceError> {
        // One that went back in time has deliveries that were made long ago.
        self.store.ensure_current().await?;
        let clock = Clock::read(&self.store).await?;
        let due = self.store.due_deliveries(&self.endpoint, SUBJECTS).await?;
        if due.is_empty() {
            // Everything was given up, so it takes nothing because there is nothing. The next failure is the first.
            if self.is_failing && !self.store.has_deliveries(&self.endpoint).await? {
                self.store.note_endpoint(&self.endpoint, false).await?;
            }
            return Ok(false);
        }
        let orders = Orders::of(&due, &self.store).await?;
        let tally = Tally { clock, taken: AtomicUsize::new(0), failed: AtomicUsize::new(0) };
        let subjects = due.chunk_by(|one, next| one.subject == next.subject);
        // Collected, because the compiler cannot tell that a lazy iterator of them may be sent to another thread.
        let giving: Vec<_> = subjects.map(|events| self.give(events, &orders, &tally)).collect();
        let given: Vec<Outcome> = stream::iter(giving).buffer_unordered(AT_ONCE).collect().await;
        let mut outcome = Outcome::default();
        for one in given {
            outcome.taken.extend(one.taken);
            outcome.not_taken.extend(one.not_taken);
            outcome.unreadable.extend(one.unreadable);
            outcome.is_gone |= one.is_gone;
        }
        self.record(&outcome).await?;
        if outcome.is_gone {
            self.switch_off("it answered 410 Gone").await?;
            return Ok(false);
        }
        if !outcome.taken.is_empty() {
            if self.is_failing {
                self.store.note_endpoint(&self.endpoint, false).await?;
            }
            return Ok(true);
        }
        // Those that cannot be read wait for some seconds now, so this ends.
        let Some(first) = outcome.not_taken.first() else { return Ok(true) };
        self.takes_nothing(&first.why).await?;
        Ok(false)
    }

    async fn record(&self, outcome: &Outcome) -> Result<(), MaintenanceError> {
        let Outcome { taken, not_taken, unreadable, .. } = outcome;
        if let Some(first) = unreadable.first() {
            tracing::warn!(endpoint = self.endpoint, orders = unreadable.len(), order_id = %first.subject,
                "webhooks of orders whose row cannot be read wait for a later build");
        }
        let failed = [not_taken.as_slice(), unreadable].concat();
        self.store.record_deliveries(&self.endpoint, taken, &failed).await?;
        let given_up = failed.iter().filter(|failed| failed.due.is_none()).count();
        metrics::counter!("doorbuster_webhooks_delivered_total").increment(taken.len() as u64);
        metrics::counter!("doorbuster_webhooks_failed_total").increment(not_taken.len() as u64);
        metrics::counter!("doorbuster_webhooks_given_up_total").increment(given_up as u64);
        Ok(())
    }

    /// Waits, or switches the endpoint off.
    async fn takes_nothing(&self, why: &str) -> Result<(), MaintenanceError> {
        let lasts = self.store.note_endpoint(&self.endpoint, true).await?;
        if lasts >= OFF_AFTER {
            return self.switch_off("nothing could be delivered for five days").await;
        }
        let for_s = lasts.as_secs();
        tracing::warn!(endpoint = self.endpoint, why, for_s, "a webhook endpoint takes nothing");
        tokio::time::sleep((lasts / 2).clamp(PAUSE.0, PAUSE.1)).await;
        Ok(())
    }

    /// Gives the endpoint the events of one order or sale, until one is not due or not taken.
    async fn give(&self, events: &[WebhookDelivery], orders: &Orders, tally: &Tally) -> Outcome {
        let mut outcome = Outcome::default();
        for (nth, delivery) in events.iter().enumerate() {
            // The first one is due, as the database said.
            let is_due = nth == 0 || delivery.due.is_some_and(|due| due <= tally.clock.now());
            if tally.is_away() || !is_due {
                break;
            }
            let failed = |why: String| {
                let WebhookDelivery { subject, version, tries, .. } = *delivery;
                let due = again_after(tries).map(|after| Millis(tally.clock.now().0 + after));
                NotTaken { subject, version, tries, due, why }
            };
            let sent = match orders.message(delivery) {
                Ok(Some(message)) => self.send(message, tally.clock.now()).await,
                Ok(None) => Ok(()),
                // Without the error, which names the buyer: neither the table nor the log is cleared when they are erased.
                Err(_) => {
                    outcome.unreadable.push(failed("an order's row cannot be read by this build".into()));
                    break;
                }
            };
            let Err(error) = sent else {
                tally.taken.fetch_add(1, Ordering::Relaxed);
                outcome.taken.push((delivery.subject, delivery.version));
                continue;
            };
            tally.failed.fetch_add(1, Ordering::Relaxed);
            outcome.is_gone |= error.is_gone();
            outcome.not_taken.push(failed(error.to_string()));
            break;
        }
        outcome
    }

    async fn send(&self, Message { id, body }: Message, now: Millis) -> Result<(), NotDelivered> {
        let event = Signed { id: &id, timestamp: now.0 / 1_000, body: &body };
        self.sender.send(&self.url, &self.secrets, event).await
    }

    async fn switch_off(&self, why: &str) -> Result<(), MaintenanceError> {
        tracing::error!(endpoint = self.endpoint, why, "a webhook endpoint is switched off");
        self.store.switch_endpoint(&self.endpoint, &EndpointState::Off(why.into())).await?;
        Ok(())
    }
}

/// The milliseconds until a delivery that has failed so often before, and now again, is tried once more.
fn again_after(failed_before: i32) -> Option<i64> {
    let nth = usize::try_from(failed_before).unwrap_or(0);
    AGAIN_AFTER_S.get(nth).map(|seconds| seconds * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_tried_for_three_days_and_then_given_up() {
        let pauses: Vec<i64> = (0..).map_while(again_after).collect();
        assert_eq!(pauses.len(), AGAIN_AFTER_S.len());
        assert!(pauses.is_sorted());
        let days = pauses.iter().sum::<i64>() / 86_400_000;
        assert_eq!((pauses[0], days, again_after(10)), (5_000, 3, None));
    }
}
