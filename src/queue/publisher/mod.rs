//! Publishing with confirms. One task owns the confirm channel: on a channel that several tasks share, one task may
//! get the answer to another's message.

mod job;
mod owner;
mod session;

use std::collections::BTreeMap;

use lapin::types::FieldTable;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::job::PublishError;
use self::job::{Exchange, Job};
use self::owner::Owner;
use super::message::Traces;
use super::topology::Depths;
use super::{QueueSettings, message};
use crate::domain::{Entry, Order, Place, SaleId};

/// A handle to the publishing task, which ends with the last handle. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    jobs: mpsc::Sender<Job>,
    up: watch::Receiver<bool>,
    depths: watch::Receiver<Option<Depths>>,
}

impl Publisher {
    /// Starts the publishing task; must be called inside a tokio runtime. Does not wait for the broker.
    pub fn open(settings: QueueSettings) -> Self {
        let (jobs, inbox) = mpsc::channel(settings.window);
        let (report_up, up) = watch::channel(false);
        let (report_depths, depths) = watch::channel(None);
        tokio::spawn(Owner::new(settings, inbox, report_up, report_depths).run());
        Self { jobs, up, depths }
    }

    /// Publishes orders in one message. On `Ok` the broker has it on a durable queue. May be repeated: workers
    /// recognise an order that they have seen.
    pub async fn publish(&self, orders: &[Order]) -> Result<(), PublishError> {
        self.publish_with(orders, &Traces::new(), FieldTable::default()).await
    }

    /// As [`Publisher::publish`], with the orders' places in their traces.
    pub async fn publish_traced(&self, orders: &[Order], traces: &Traces) -> Result<(), PublishError> {
        self.publish_with(orders, traces, FieldTable::default()).await
    }

    pub(super) async fn publish_with(
        &self,
        orders: &[Order],
        traces: &Traces,
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        let Some(first) = orders.first() else { return Ok(()) };
        self.send(Exchange::Orders, first.id.to_string(), message::write(orders, traces), headers).await
    }

    /// On `Ok` the dead letter is on the dead-letter queue. If repeated, it is there twice.
    pub(super) async fn publish_dead_letter(
        &self,
        id: String,
        payload: Vec<u8>,
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        self.send(Exchange::Dead, id, payload, headers).await
    }

    /// Appends a message to the order log. On `Ok` the log has it.
    pub(super) async fn log(
        &self,
        id: String,
        entries: &[Entry],
        places: &BTreeMap<SaleId, Place>,
    ) -> Result<(), PublishError> {
        self.send(Exchange::Log, id, message::write_entries(entries, places), FieldTable::default()).await
    }

    async fn send(
        &self,
        exchange: Exchange,
        id: String,
        payload: Vec<u8>,
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        if !self.is_up() {
            return Err(PublishError::Away);
        }
        let (answer, confirmed) = oneshot::channel();
        let job = Job { exchange, id, payload, headers, answer };
        self.jobs.try_send(job).map_err(|_| PublishError::Away)?;
        // The owner drops the answers that it does not know.
        confirmed.await.unwrap_or(Err(PublishError::Unconfirmed))
    }

    /// Whether the broker is available, as far as this process knows.
    pub fn is_up(&self) -> bool {
        // If the owner has panicked, `up` keeps its last value.
        *self.up.borrow() && !self.jobs.is_closed()
    }

    /// The messages that wait in the queues, up to 5 s ago; `None` while the broker is unavailable.
    pub fn depths(&self) -> Option<Depths> {
        self.depths.borrow().filter(|_| self.is_up())
    }

    /// Returns once the broker is known to be unavailable.
    pub async fn wait_until_down(&self) {
        let mut up = self.up.clone();
        let _ = up.wait_for(|up| !*up).await;
    }

    /// Returns once the broker is available. Waits forever if it never is.
    pub async fn wait_until_up(&self) {
        let mut up = self.up.clone();
        let _ = up.wait_for(|up| *up).await;
    }
}
