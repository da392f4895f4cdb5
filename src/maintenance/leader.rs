//! Chooses the process for work that only one may do at a time. There are two kinds, because they fail differently:
//!
//! - A [`Leader`] works continuously, in short rounds, and renews its lease by hand between them. A leader that
//!   hangs in a round loses the lead, although its process and its watchdog are alive.
//! - [`alone`] does one piece of work that may take an hour. Nothing could renew by hand in the middle of it, so
//!   the watchdog does, up to a limit.
//!
//! Scopes begin with an underscore: no sale can have such an id, so no buyer's lease is ever a leader's.

use std::time::Duration;

use super::MaintenanceError;
use crate::lease::{Guard, LeaseError, LeaseOptions, Leases};

/// How long the lead lasts without a renewal.
pub const LEADERSHIP: Duration = Duration::from_secs(10);

/// The only name in a scope of maintenance.
const NAME: &str = "leader";

/// A candidate for the lead of one scope.
pub struct Leader<'a> {
    leases: &'a Leases,
    scope: &'static str,
    guard: Option<Guard>,
}

impl<'a> Leader<'a> {
    pub fn new(leases: &'a Leases, scope: &'static str) -> Self {
        Self { leases, scope, guard: None }
    }

    /// Whether this process leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.guard.is_some()
    }

    /// Renews the lead, or takes it if it is free. `None`: another process leads.
    ///
    /// # Errors
    /// Redis does not say who leads, so perhaps nobody does: what others would measure is not measured.
    pub async fn lead(&mut self) -> Result<Option<&Guard>, LeaseError> {
        self.guard = match self.guard.take() {
            Some(guard) => match guard.renew().await {
                Ok(true) => Some(guard),
                Ok(false) => None,
                // After an error the lease still lasts until its end.
                Err(_) if guard.is_valid_for(Duration::ZERO) => Some(guard),
                Err(error) => return Err(error),
            },
            None => {
                let options = LeaseOptions::lasting(LEADERSHIP).renewed_manually();
                self.leases.take(self.scope, [NAME], options).await?.guard
            }
        };
        Ok(self.guard.as_ref())
    }

    /// Gives up the lead, if this process has it.
    pub async fn resign(&mut self) {
        if let Some(guard) = self.guard.take() {
            let _ = guard.release().await;
        }
    }
}

/// Renews the lead in the middle of a round once half of it has passed. After an error the round continues until the
/// lease ends.
pub async fn keep_leading(guard: &Guard) {
    if !guard.is_valid_for(LEADERSHIP / 2) {
        let _ = guard.renew().await;
    }
}

/// The longest time that one process works alone, unless its caller says otherwise.
pub const LONGEST: Duration = Duration::from_secs(3_600);

/// The lease for [`alone`]: if its holder dies, the others wait 15 s.
pub fn work_alone() -> LeaseOptions {
    LeaseOptions::lasting(Duration::from_secs(15)).max_hold(LONGEST)
}

/// Runs `work` if no other process works in this scope. `Ok(false)`: another process does.
///
/// # Errors
/// Those of the work; [`LeaseError::Redis`] if Redis does not say whether another process works, so perhaps nobody does.
pub async fn alone(
    leases: &Leases,
    scope: &str,
    options: LeaseOptions,
    work: impl Future<Output = Result<(), MaintenanceError>>,
) -> Result<bool, MaintenanceError> {
    let Some(guard) = leases.take(scope, [NAME], options).await?.guard else { return Ok(false) };
    // On the heap: the work of an hour is a large future, and unoptimised code copies it in every frame above.
    let done = guard.until_lost(Box::pin(work)).await;
    let _ = guard.release().await;
    done??;
    Ok(true)
}
