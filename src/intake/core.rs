//! The handle on the intake: its settings and the parts that requests share.

use std::time::Duration;

use super::refusal_cache::RefusalCache;
use super::relay::Relay;
use super::row_reader::RowReader;
use super::sale_cache::SaleCache;
use super::shared_poll::SharedPoll;
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::store::Store;

/// Which servers must hold an order before its buyer gets `accepted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityPolicy {
    /// Redis and RabbitMQ; otherwise the outcome is unknown.
    BrokerOnly,
    /// Redis and RabbitMQ, or Redis alone while RabbitMQ does not confirm; the answer says which.
    BrokerPreferred,
    /// Redis alone; the order is published to RabbitMQ right after.
    Outbox,
}

/// Limits and intervals of the intake, from the configuration.
#[derive(Debug, Clone)]
pub struct IntakeSettings {
    /// Which servers must hold an order before it counts as accepted.
    pub durability: DurabilityPolicy,
    /// How long a request waits for the broker's confirm.
    pub confirm_within: Duration,
    /// How long a description of a sale is reused for checks that the gate repeats.
    pub sale_cache: Duration,
    /// The interval of the poll that all waiting requests share.
    pub watch_every: Duration,
}

/// A handle on the intake; cheap to clone.
#[derive(Clone)]
pub struct Intake {
    pub(super) gate: Gate,
    pub(super) store: Store,
    pub(super) relay: Relay,
    pub(super) sales: SaleCache,
    pub(super) poll: SharedPoll,
    pub(super) refusals: RefusalCache,
    pub(super) reader: RowReader,
    pub(super) settings: IntakeSettings,
}

impl Intake {
    /// Starts the shared tasks without waiting for any server. Must be called inside a tokio runtime.
    pub fn new(gate: Gate, publisher: Publisher, store: Store, settings: IntakeSettings) -> Self {
        Self {
            relay: Relay::new(gate.clone(), publisher),
            sales: SaleCache::new(gate.clone(), store.clone(), settings.sale_cache),
            poll: SharedPoll::spawn(gate.clone(), settings.watch_every),
            refusals: RefusalCache::new(gate.clone()),
            reader: RowReader::spawn(store.clone()),
            gate,
            store,
            settings,
        }
    }

    /// The cached descriptions of sales.
    pub fn sales(&self) -> &SaleCache {
        &self.sales
    }

    /// The relay that publishes accepted orders.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }
}
