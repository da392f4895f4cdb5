//! HTTP: the buyers' listener and the operations listener. The only place that names axum, and
//! the only one that knows a status code.

mod acts;
mod admin;
mod auth;
mod body;
mod buyers;
mod dead_letters;
mod known_tokens;
mod operations;
mod orders;
mod payments;
mod problem;
mod server;
mod throttle;
mod views;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::control::{Control, DeadLetterActs};
use crate::gate::Gate;
use crate::intake::Intake;
use crate::orders::{Orders, Payments};
use crate::store::Store;

pub use auth::{AuthSettings, Role, Tokens, check_public_key};
pub use operations::{Dependency, Readiness};
pub use payments::{Providers, signature};
pub use server::{ServerSettings, serve};
pub use throttle::ThrottleSettings;

#[derive(Debug, Clone)]
pub struct FrontSettings {
    pub body_limit: usize,
    pub body_within: Duration,
    /// The longest that a request may wait for an order to end, however long it asks to.
    pub longest_wait: Duration,
}

/// What the buyers' routes work with.
pub struct Buyers {
    pub intake: Intake,
    pub orders: Orders,
    pub payments: Payments,
    pub providers: Providers,
    pub throttle: ThrottleSettings,
    pub tokens: Arc<Tokens>,
    pub settings: FrontSettings,
    /// Ends the waiting of requests, so that they are answered before the process stops.
    pub stop: CancellationToken,
}

/// What the operations routes work with.
pub struct Operations {
    pub control: Control,
    pub dead_letters: DeadLetterActs,
    pub orders: Orders,
    pub gate: Gate,
    pub store: Store,
    pub tokens: Arc<Tokens>,
    pub settings: FrontSettings,
    pub readiness: tokio::sync::watch::Receiver<Readiness>,
    /// Renders the metrics in the Prometheus text format.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
}

pub fn buyers(buyers: Buyers) -> axum::Router {
    buyers::router(Arc::new(buyers))
}

pub fn operations(operations: Operations) -> axum::Router {
    operations::router(Arc::new(operations))
}
