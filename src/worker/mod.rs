//! From deliveries to rows. Only the worker acknowledges messages, and only after COMMIT: a worker that dies
//! before that leaves the message with the broker.
//!
//! The steps of a batch have a fixed order: lease, transaction, ack, release, settle. A lease that is released
//! before COMMIT lets another worker in too early. An order that is settled before COMMIT is in neither server for a
//! moment.
//!
//! Reading order: `lanes` takes deliveries and runs several batches at once, `batch` retries a batch until it is
//! done, `attempt` is one try, `aside` has the sales that must wait, `lent` keeps the sweep from publishing what is held,
//! `poison` finds orders that no retry will persist, `refused` has those that the dead-letter queue has not taken,
//! `try_lanes` says when what waits apart may be tried, and `pending` holds a message until each of its orders has an
//! outcome.

mod aside;
mod attempt;
mod batch;
mod lanes;
mod lent;
mod pending;
mod poison;
mod refused;
mod timeline;
mod try_lanes;

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::lanes::Lanes;
use crate::gate::Gate;
use crate::lease::{LeaseError, Leases};
use crate::queue::{Consumer, DeadLetters};
use crate::store::{Store, StoreError};
use crate::telemetry::SaleGauges;

/// Why an attempt to persist a batch failed. Nothing was acknowledged.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The database or Redis has been unavailable for so long that the deliveries go back to the broker.
struct Outage;

/// How much a worker does at once, and how long it waits.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Orders in one transaction. One message may exceed it.
    pub batch: usize,
    /// How long a batch waits for more deliveries after its first.
    pub linger: Duration,
    /// How long an outage may last before this worker gives its deliveries back and stops consuming until the
    /// outage is over.
    pub hold: Duration,
    /// How often the outbox hears of orders that this worker holds for so long: less often than the sweep looks at an order
    /// again.
    pub put_off_every: Duration,
}

/// What may change while a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPace {
    /// Batches at once: while one waits for its COMMIT, the next takes its leases. A database with one writer gets one
    /// lane.
    pub lanes: usize,
    /// How long a user's lease lasts: the users of a killed worker are free after that.
    pub lease: Duration,
    /// Whether orders are taken from the queue at all.
    pub persist: bool,
}

/// Persists the orders of the queue. Several may work on one queue.
pub struct Worker {
    /// Receives the outcomes.
    pub gate: Gate,
    /// Keeps other processes from acting for the users of a batch.
    pub leases: Leases,
    /// Receives the rows.
    pub store: Store,
    /// Receives the orders that cannot be persisted.
    pub dead_letters: DeadLetters,
    /// Show the sales that are set aside.
    pub gauges: SaleGauges,
    /// How much and how long.
    pub settings: WorkerSettings,
    /// The rest of it, which may change.
    pub pace: watch::Receiver<WorkerPace>,
}

impl Worker {
    /// Runs until `stop`. Then it finishes the batches under way and returns the rest to the broker by closing the
    /// connection. Errors are retried for as long as they last.
    pub async fn run(self, consumer: Consumer, stop: CancellationToken) {
        Lanes::new(self, consumer, stop).run().await;
    }
}
