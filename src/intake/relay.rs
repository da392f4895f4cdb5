//! From the outbox to the broker. One path with two triggers: the request that was just admitted, and the sweep,
//! for orders that a dead front left behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};

use crate::domain::{Order, OrderId, SaleId, TraceContext};
use crate::fault::fault;
use crate::gate::Gate;
use crate::link::{Gather, call_together};
use crate::queue::{PublishError, Publisher};
use crate::trace::{Kind, Span};

/// Maximum orders in one message. A queue takes twenty thousand messages a second, however large they are. Waiting
/// orders share a message, and a lone order does not wait.
const TOGETHER: usize = 128;
/// Concurrent publishes. More would only make the messages smaller.
const UNDER_WAY: usize = 4;
/// Maximum orders waiting for a message; the others are left to the sweep.
const WAITING: usize = 100_000;

/// Maximum marks written in one call.
const MARKS: usize = 1_000;
/// How long marks wait for others: far less than the sweep's grace.
const MARK_AFTER: Duration = Duration::from_millis(100);
/// Maximum marks waiting to be written. A mark beyond that is dropped, and the sweep publishes its order again.
const MARKS_WAITING: usize = 20_000;

/// The outcome of a publish: `None` while it is under way, then whether the broker confirmed.
type Confirmed = Option<bool>;

/// Publishes under way, and those that are confirmed but not marked in the outbox yet.
type Publishes = Arc<Mutex<HashMap<OrderId, watch::Receiver<Confirmed>>>>;

/// An order that waits for a message.
struct Queued {
    order: Order,
    /// The publish in the order's trace, if that is recorded.
    span: Option<Span>,
    confirmed: watch::Sender<Confirmed>,
}

/// Publishes orders of the outbox; cheap to clone.
#[derive(Clone)]
pub struct Relay {
    publisher: Publisher,
    publishes: Publishes,
    queue: mpsc::Sender<Queued>,
}

impl Relay {
    pub(super) fn new(gate: Gate, publisher: Publisher) -> Self {
        let (marks, inbox) = mpsc::channel(MARKS_WAITING);
        let publishes = Publishes::default();
        tokio::spawn(mark(gate, inbox, publishes.clone()));
        let (queue, waiting) = mpsc::channel(WAITING);
        let batches = Batches { publisher: publisher.clone(), publishes: publishes.clone(), marks };
        tokio::spawn(batches.run(waiting));
        Self { publisher, publishes, queue }
    }

    /// The publisher that the relay uses.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Starts publishing an order of the outbox, or joins the publish under way. The future resolves to whether the
    /// broker confirmed; dropping it stops nothing, so a buyer may hang up. May be repeated. The message carries `trace` on,
    /// if that is recorded.
    pub fn publish(&self, order: &Order, trace: Option<TraceContext>) -> impl Future<Output = bool> + use<> {
        let mut publish = self.start_or_join(order, trace);
        async move {
            match publish.wait_for(Option::is_some).await {
                Ok(confirmed) => *confirmed == Some(true),
                Err(_) => false,
            }
        }
    }

    fn start_or_join(&self, order: &Order, trace: Option<TraceContext>) -> watch::Receiver<Confirmed> {
        let mut publishes = lock(&self.publishes);
        // A publish that ended without a result, through a bug, is started again.
        if let Some(publish) = publishes.get(&order.id)
            && (publish.borrow().is_some() || publish.has_changed().is_ok())
        {
            return publish.clone();
        }
        let (confirmed, publish) = watch::channel(None);
        // A broker that is away, blocked or silent takes nothing, so no order waits for it. An order that is not
        // queued drops its sender, which its receivers read as "not confirmed".
        if self.publisher.is_up() {
            let span = Span::child(trace, "publish", Kind::Producer);
            if self.queue.try_send(Queued { order: order.clone(), span, confirmed }).is_ok() {
                publishes.insert(order.id, publish.clone());
            }
        }
        publish
    }
}

fn lock(publishes: &Publishes) -> MutexGuard<'_, HashMap<OrderId, watch::Receiver<Confirmed>>> {
    publishes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The task that publishes waiting orders, many in one message.
#[derive(Clone)]
struct Batches {
    publisher: Publisher,
    publishes: Publishes,
    marks: mpsc::Sender<(SaleId, OrderId)>,
}

impl Batches {
    /// Ends with the last relay.
    async fn run(self, mut waiting: mpsc::Receiver<Queued>) {
        let places = Arc::new(Semaphore::new(UNDER_WAY));
        let mut gather = Gather::default();
        loop {
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = self.publisher.wait_until_down() => {
                    // Queued orders must not wait for the broker: the sweep publishes them later.
                    while let Ok(queued) = waiting.try_recv() {
                        lock(&self.publishes).remove(&queued.order.id);
                        queued.confirmed.send_replace(Some(false));
                    }
                    tokio::select! {
                        place = places.clone().acquire_owned() => place,
                        () = self.publisher.wait_until_up() => continue,
                    }
                }
            };
            let Ok(place) = place else { return };
            let together = gather.next(&mut waiting, TOGETHER).await;
            if together.is_empty() {
                return;
            }
            let batches = self.clone();
            tokio::spawn(async move {
                batches.publish_batch(together).await;
                drop(place);
            });
        }
    }

    async fn publish_batch(&self, queued: Vec<Queued>) {
        let (mut orders, mut waiting) = (Vec::with_capacity(queued.len()), Vec::with_capacity(queued.len()));
        let mut spans = Vec::new();
        for Queued { order, span, confirmed } in queued {
            spans.extend(span.map(|span| (order.id, span)));
            orders.push(order);
            waiting.push(confirmed);
        }
        let published = self.publish(&orders, &spans).await;
        let result = if published.is_ok() { "confirmed" } else { "left" };
        metrics::counter!("doorbuster_relay_published_total", "result" => result)
            .increment(orders.len() as u64);
        if let Err(error) = &published {
            tracing::debug!(orders = orders.len(), %error, "publish left to the sweep");
        }
        for (_, span) in spans {
            let span = span.with_number("messaging.batch.message_count", orders.len());
            match &published {
                Ok(()) => span.end(),
                Err(error) => span.failed(error).end(),
            }
        }
        for confirmed in waiting {
            confirmed.send_replace(Some(published.is_ok()));
        }
        for order in orders {
            // Until the outbox is marked, a repeat learns from this entry that the broker has the order.
            let id = order.id;
            if published.is_err() || self.marks.try_send((order.sale, id)).is_err() {
                lock(&self.publishes).remove(&id);
            }
        }
    }

    async fn publish(&self, orders: &[Order], spans: &[(OrderId, Span)]) -> Result<(), PublishError> {
        fault!("publish.before", return Err(PublishError::Away));
        let begun = Instant::now();
        let traces = spans.iter().map(|(order, span)| (*order, span.context())).collect();
        self.publisher.publish_traced(orders, &traces).await?;
        metrics::histogram!("doorbuster_relay_confirm_seconds").record(begun.elapsed());
        fault!("confirm.after", return Err(PublishError::Unconfirmed));
        Ok(())
    }
}

/// Marks confirmed orders in the outbox, many in one call. There is no hurry: an order that gets its row meanwhile
/// needs no mark. Ends with the last relay.
async fn mark(gate: Gate, mut inbox: mpsc::Receiver<(SaleId, OrderId)>, publishes: Publishes) {
    let mut buffer = Vec::with_capacity(MARKS);
    while inbox.recv_many(&mut buffer, MARKS).await > 0 {
        if buffer.len() < MARKS {
            tokio::time::sleep(MARK_AFTER).await;
            while buffer.len() < MARKS
                && let Ok(next) = inbox.try_recv()
            {
                buffer.push(next);
            }
        }
        let mut sales: HashMap<SaleId, Vec<OrderId>> = HashMap::new();
        for (sale, id) in buffer.drain(..) {
            sales.entry(sale).or_default().push(id);
        }
        let (gate, publishes) = (&gate, &publishes);
        let marking = sales.into_iter().map(|(sale, ids)| async move {
            if let Err(error) = gate.mark_confirmed(&sale, &ids).await {
                tracing::debug!(%sale, %error, "confirms not marked; the sweep will publish again");
            }
            let mut publishes = lock(publishes);
            for id in ids {
                publishes.remove(&id);
            }
        });
        call_together(marking).await;
    }
}
