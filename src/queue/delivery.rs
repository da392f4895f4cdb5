//! A message on loan from the broker.

use std::time::Duration;

use lapin::Acker;
use lapin::options::BasicAckOptions;
use tokio::time::Instant;

use super::headers::{self, DELIVERY_COUNT};
use super::link::acknowledged;
use super::prefetch::{Amount, Loan, Prefetch};
use super::{Traces, Unreadable, message};
use crate::domain::Order;
use crate::fault::fault;

/// A message that this process holds. If it is dropped it stays unacknowledged, and the broker delivers it again when
/// the connection ends.
pub struct Delivery {
    /// The orders that the message carries.
    pub orders: Result<Vec<Order>, Unreadable>,
    /// How often it was delivered before, to workers that did not acknowledge it.
    pub redeliveries: u64,
    /// How often an operator replayed it.
    pub(super) replays: u32,
    /// The message and its id, for the dead-letter queue.
    pub(super) payload: Vec<u8>,
    pub(super) id: Option<String>,
    /// When this process read it.
    taken_at: Instant,
    acker: Acker,
    loan: Loan,
}

impl Delivery {
    pub(super) fn read(delivery: lapin::message::Delivery, prefetch: &mut Prefetch) -> Self {
        let orders = message::read(&delivery.data);
        let headers = delivery.properties.headers().as_ref();
        // Quorum queues count redeliveries; a classic queue only says whether there was one.
        let redeliveries = headers::count(headers, DELIVERY_COUNT);
        let redeliveries = redeliveries.unwrap_or_else(|| u64::from(delivery.redelivered));
        if redeliveries > 0 {
            metrics::counter!("doorbuster_worker_redeliveries_total").increment(1);
        }
        Self {
            loan: prefetch.lend(weight(&orders)),
            orders,
            taken_at: Instant::now(),
            replays: headers::replays(headers),
            redeliveries,
            id: delivery.properties.message_id().as_ref().map(ToString::to_string),
            payload: delivery.data,
            acker: delivery.acker,
        }
    }

    /// What the broker has lent with it, until it is dropped.
    pub fn lent(&self) -> Amount {
        self.loan.amount()
    }

    /// The places of its orders in their traces, of those whose traces are recorded.
    pub fn traces(&self) -> Traces {
        message::read_traces(&self.payload)
    }

    /// How long ago this process read it.
    pub fn age(&self) -> Duration {
        self.taken_at.elapsed()
    }

    /// Removes the message from the queue. `false`: the broker no longer waits for the ack, and the message comes again; or
    /// the ack is not sent yet, as when the broker is being killed.
    pub async fn ack(&self) -> bool {
        let sent = async {
            fault!("ack.during");
            self.acker.ack(BasicAckOptions::default()).await
        };
        acknowledged(sent).await.unwrap_or(false)
    }
}

/// The number of orders; an unreadable message counts as 1.
pub(super) fn weight(orders: &Result<Vec<Order>, Unreadable>) -> usize {
    orders.as_ref().map_or(1, Vec::len)
}
