//! Takes deliveries from the broker and runs several batches at once, each in its lane.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::aside::Aside;
use super::lent::Lent;
use super::pending::{PendingDelivery, orders_in};
use super::refused::Refused;
use super::try_lanes::TryLanes;
use super::{Outage, Worker, WorkerPace};
use crate::domain::SaleId;
use crate::fault::fault;
use crate::queue::{Consumer, Delivery};

/// How long a delivery that must be retried waits for others to join it.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// More deliveries than these count as work that is under way, so that the broker lends no others besides: it bounds the
/// memory that they take.
const MOST_ASIDE: usize = 50_000;

/// What a lane works on.
enum Work {
    /// New deliveries, and those that were held.
    Batch,
    /// A try whether this sale can go on.
    Sale(SaleId),
    /// One of the refused.
    Refused,
}

/// How a lane ended: what it worked on, and the deliveries that it has left.
type Ended = (Work, Result<Vec<PendingDelivery>, Outage>);

pub(super) struct Lanes {
    worker: Arc<Worker>,
    consumer: Consumer,
    stop: CancellationToken,
    /// Tells when it changes.
    pace: watch::Receiver<WorkerPace>,
    running: JoinSet<Ended>,
    /// What they work on.
    lent: Lent,
    /// When to put off the sweep next.
    put_off: Interval,
    /// Deliveries to be retried in the next batch.
    held: Vec<PendingDelivery>,
    /// Sales that cannot go on now.
    aside: Aside,
    /// Deliveries that the dead-letter queue has not taken yet.
    refused: Refused,
    /// When both may be tried.
    tries: TryLanes,
}

impl Lanes {
    pub(super) fn new(worker: Worker, consumer: Consumer, stop: CancellationToken) -> Self {
        let mut put_off = interval(worker.settings.put_off_every);
        put_off.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            lent: Lent::new(worker.settings.put_off_every),
            put_off,
            aside: Aside::new(worker.gauges.clone()),
            pace: worker.pace.clone(),
            worker: Arc::new(worker),
            consumer,
            stop,
            running: JoinSet::new(),
            held: Vec::new(),
            refused: Refused::new(),
            tries: TryLanes::new(),
        }
    }

    pub(super) async fn run(mut self) {
        // Before the first delivery: a process that has just started knows no place of the database.
        if self.worker.is_behind().await {
            self.wait_out_the_outage().await;
        }
        loop {
            let WorkerPace { lanes, persist, .. } = self.pace.borrow_and_update().clone();
            if !persist {
                self.wait_out_the_pause().await;
            }
            if self.stop.is_cancelled() {
                break;
            }
            let lanes = lanes.min(self.worker.store.writers()).max(1);
            let free = self.running.len() < lanes;
            if free {
                fault!("delivery.before", self.consumer.close().await);
            }
            let settings = &self.worker.settings;
            let orders = settings.batch.saturating_sub(orders_in(&self.held)).max(1);
            let (linger, timeout) = (settings.linger, self.timeout());
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Ok(()) = self.pace.changed() => {}
                Some(ended) = self.running.join_next_with_id() => match self.joined(ended) {
                    (work, Ok(left)) => self.take_over(&work, left),
                    (_, Err(Outage)) => self.wait_out_the_outage().await,
                },
                _ = self.put_off.tick() => {
                    let waiting = waiting(&self.held, &self.aside, &self.refused);
                    self.lent.put_off_sweep(&self.worker.gate, waiting, self.consumer.arrived()).await;
                }
                () = until(self.tries.next(lanes, self.aside.next_retry())), if free => {
                    if let Some((sale, batch)) = self.aside.take_due(settings.batch) {
                        self.spawn(batch, Work::Sale(sale));
                    }
                }
                () = until(self.tries.next(lanes, self.refused.next_retry())), if free => {
                    if let Some(refused) = self.refused.take_next() {
                        self.spawn(vec![refused], Work::Refused);
                    }
                }
                next = self.consumer.next_batch_within(orders, linger, timeout), if free => {
                    self.begin(next).await;
                }
            }
        }
        self.finish().await;
    }

    /// How long to wait for a delivery.
    fn timeout(&self) -> Duration {
        // A held delivery must not wait for the next buyer.
        if self.held.is_empty() { Duration::MAX } else { RETRY_AFTER }
    }

    /// Sorts what a lane has left by when it may go on.
    fn take_over(&mut self, work: &Work, left: Vec<PendingDelivery>) {
        if !matches!(work, Work::Batch) {
            self.tries.end(Instant::now());
        }
        let tried = if let Work::Sale(sale) = work { Some(sale) } else { None };
        let left = self.aside.take_over(left, tried);
        self.held.extend(self.refused.take_over(left, matches!(work, Work::Refused)));
        self.show_aside();
    }

    /// Starts a batch of new and held deliveries in a lane.
    async fn begin(&mut self, deliveries: Vec<Delivery>) {
        let (unreadable, mut batch): (Vec<_>, Vec<_>) =
            deliveries.into_iter().map(PendingDelivery::new).partition(|pending| pending.is_refused);
        unreadable.into_iter().for_each(|pending| self.refused.add(pending));
        // The orders of a sale that goes on after a stall may be many batches.
        let mut room = self.worker.settings.batch.saturating_sub(orders_in(&batch));
        let fitting = self.held.iter().take_while(|pending| {
            let fits = room > 0;
            room = room.saturating_sub(pending.orders.len());
            fits
        });
        let fitting = fitting.count();
        batch.extend(self.held.drain(..fitting));
        let batch = self.aside.sift(batch);
        self.show_aside();
        if batch.is_empty() {
            return;
        }
        fault!("delivery.after", {
            self.consumer.close().await;
            return self.spawn(Vec::new(), Work::Batch);
        });
        self.spawn(batch, Work::Batch);
    }

    /// Works on a batch in a lane of its own.
    fn spawn(&mut self, mut batch: Vec<PendingDelivery>, work: Work) {
        if !matches!(work, Work::Batch) {
            self.tries.begin(Instant::now());
        }
        batch.iter_mut().for_each(|pending| pending.is_refused = false);
        let (worker, stop) = (self.worker.clone(), self.stop.clone());
        let held = Lent::of(&batch);
        let lane = self.running.spawn(async move {
            let left = match work {
                Work::Refused => worker.try_refused(batch, &stop).await,
                Work::Batch | Work::Sale(_) => worker.process(batch, &stop).await,
            };
            (work, left)
        });
        self.lent.begin(lane.id(), held);
    }

    /// A panic in a lane is a panic of the worker.
    fn joined(&mut self, ended: Result<(Id, Ended), JoinError>) -> Ended {
        match ended {
            Ok((lane, ended)) => {
                self.lent.end(lane);
                ended
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => {
                self.lent.end(error.id());
                (Work::Batch, Ok(Vec::new()))
            }
        }
    }

    /// Deliveries that wait apart must not use up the prefetch, or the others would never come.
    fn show_aside(&mut self) {
        let aside = self.aside.held() + self.refused.held();
        if aside.messages <= MOST_ASIDE {
            self.consumer.set_aside(aside);
        }
    }

    /// Gives all deliveries back and returns once database and Redis answer, or at `stop`.
    async fn wait_out_the_outage(&mut self) {
        tracing::warn!("worker consumes no more until database and redis answer; the queue holds");
        self.give_back().await;
        self.worker.wait_for_servers(&self.stop).await;
    }

    /// Gives all deliveries back and returns once orders are to be persisted again, or at `stop`.
    async fn wait_out_the_pause(&mut self) {
        tracing::warn!("worker.persist is false: the worker consumes no more; the queue holds");
        self.give_back().await;
        let resumed = self.pace.wait_for(|pace| pace.persist);
        if let Some(Ok(_)) = self.stop.run_until_cancelled(resumed).await {
            tracing::info!("worker.persist is true: the worker consumes again");
        }
    }

    async fn give_back(&mut self) {
        self.consumer.close().await;
        // Deliveries in other lanes go back with the connection.
        while let Some(ended) = self.running.join_next_with_id().await {
            let _ = self.joined(ended);
        }
        self.held.clear();
        self.aside.clear();
        self.refused.clear();
        self.tries = TryLanes::new();
        self.show_aside();
    }

    async fn finish(mut self) {
        while let Some(ended) = self.running.join_next_with_id().await {
            let (_, left) = self.joined(ended);
            self.held.extend(left.unwrap_or_default());
        }
        match waiting(&self.held, &self.aside, &self.refused).count() {
            0 => tracing::info!("worker stops with no delivery pending"),
            deliveries => tracing::info!(deliveries, "worker stops and returns its deliveries to the broker"),
        }
        self.consumer.close().await;
    }
}

/// The deliveries that no lane works on.
fn waiting<'a>(
    held: &'a [PendingDelivery],
    aside: &'a Aside,
    refused: &'a Refused,
) -> impl Iterator<Item = &'a PendingDelivery> {
    held.iter().chain(aside.deliveries()).chain(refused.deliveries())
}

/// Waits for this moment; for ever if there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
