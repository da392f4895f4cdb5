//! Which process does what only one may do at a time.

use std::time::Duration;

use crate::lease::{Guard, LeaseOptions, Leases};

/// How long the lead lasts without being renewed.
pub const LEADERSHIP: Duration = Duration::from_secs(10);

/// Renews the lead, or takes it where nobody has it. `None`: another leads, or Redis is away.
///
/// By hand, and not by the watchdog: a leader that hangs must lose its lead, though its process is alive.
/// `scope` must not be the id of a sale.
pub async fn lead(leases: &Leases, scope: &str, leader: Option<Guard>) -> Option<Guard> {
    if let Some(guard) = leader {
        return match guard.renew().await {
            Ok(true) => Some(guard),
            Ok(false) => None,
            // Its lease goes on, as long as it lasts.
            Err(_) => guard.is_valid_for(Duration::ZERO).then_some(guard),
        };
    }
    let options = LeaseOptions::lasting(LEADERSHIP).renewed_manually();
    leases.take(scope, ["leader"], options).await.ok()?.guard
}
