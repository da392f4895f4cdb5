//! The state that the routes share: one value for the buyers' listener, one for the operations listener.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::auth::{BuyerTokens, OperatorTokens};
use super::events::{SaleStreams, StreamRoom};
use super::live::LiveFront;
use super::readiness::Readiness;
use super::signatures::Providers;
use super::throttle::ThrottleSettings;
use crate::control::{Control, DeadLetterActs, SettingActs, WebhookActs};
use crate::gate::{Gate, OrderChanges};
use crate::intake::Intake;
use crate::orders::{Orders, PaymentBatches};
use crate::queue::Depths;
use crate::store::Store;

/// Limits that hold for every request.
#[derive(Debug, Clone)]
pub struct FrontSettings {
    /// The largest body, in bytes.
    pub body_limit: usize,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// The longest time that a request may wait for an order to be decided, even if it asks for more.
    pub longest_wait: Duration,
}

/// The state of the buyers' routes.
pub struct Buyers {
    /// Places and reads orders.
    pub intake: Intake,
    /// Cancels orders.
    pub orders: Orders,
    /// Takes the events of payment providers.
    pub payments: PaymentBatches,
    /// The providers that may call, with their secrets.
    pub providers: Providers,
    /// Where the address of a request is read from.
    pub throttle: ThrottleSettings,
    /// The limits per address and per buyer, and what is refused now.
    pub live: Arc<LiveFront>,
    /// Verifies buyers' tokens.
    pub tokens: Arc<BuyerTokens>,
    /// Limits that hold for every request.
    pub settings: FrontSettings,
    /// The sales whose events somebody reads.
    pub streams: Arc<SaleStreams>,
    /// Bounds the streams of events.
    pub room: StreamRoom,
    /// The orders whose events somebody reads.
    pub changes: OrderChanges,
    /// Ends long polls and streams, so that they are answered before the process stops.
    pub stop: CancellationToken,
}

/// The state of the operations routes.
pub struct Operations {
    /// Acts on sales.
    pub control: Control,
    /// Acts on dead letters.
    pub dead_letters: DeadLetterActs,
    /// Acts on settings.
    pub live_settings: SettingActs,
    /// The acts on endpoints of webhooks.
    pub webhooks: WebhookActs,
    /// Acts on orders.
    pub orders: Orders,
    /// Read by the audit.
    pub gate: Gate,
    /// Read by the audit and by the listings.
    pub store: Store,
    /// Verifies operators' tokens.
    pub tokens: OperatorTokens,
    /// Limits that hold for every request.
    pub settings: FrontSettings,
    /// What waits in the queues, where it was counted lately.
    pub depths: Arc<dyn Fn() -> Option<Depths> + Send + Sync>,
    /// The sales whose events somebody reads.
    pub streams: Arc<SaleStreams>,
    /// Bounds the streams of events.
    pub room: StreamRoom,
    /// Ends streams, so that the process can stop.
    pub stop: CancellationToken,
    /// What the monitoring routes show.
    pub monitoring: Monitoring,
}

/// The state of the routes for monitoring.
#[derive(Clone)]
pub struct Monitoring {
    /// The result of the last health check.
    pub readiness: tokio::sync::watch::Receiver<Readiness>,
    /// Renders the metrics in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}
