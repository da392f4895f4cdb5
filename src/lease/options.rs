//! How long a lease is held, and who renews it.

use std::time::Duration;

use super::LeaseError;

/// How long a lease lasts and who renews it.
///
/// An explicit duration does not switch off renewal; [`LeaseOptions::renewed_manually`] does.
///
/// ```
/// use std::time::Duration;
/// use doorbuster::lease::{LeaseOptions, Renewal};
///
/// let options = LeaseOptions::lasting(Duration::from_secs(5));
/// assert!(matches!(options.renewal(), Renewal::Watchdog { .. }));
/// assert_eq!(options.renewed_manually().renewal(), Renewal::Manual);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseOptions {
    duration: Duration,
    renewal: Renewal,
    min_hold: Duration,
}

/// Who renews a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The process's watchdog, whenever a third of the lease has passed.
    Watchdog {
        /// After this total time the holder loses the lease, so that a holder that hangs cannot lock others out for
        /// ever.
        max_hold: Duration,
    },
    /// Only the holder, with [`Guard::renew`](super::Guard::renew). A holder that hangs loses the lease.
    Manual,
}

impl Default for LeaseOptions {
    /// 30 s, renewed every 10 s, for at most 10 minutes.
    fn default() -> Self {
        Self::lasting(Duration::from_secs(30))
    }
}

impl LeaseOptions {
    /// A lease that locks others out for this long after its holder's process dies: from 10 ms to a day. The
    /// watchdog renews it for at most 10 minutes.
    pub fn lasting(duration: Duration) -> Self {
        let renewal = Renewal::Watchdog { max_hold: Duration::from_secs(600) };
        Self { duration, renewal, min_hold: Duration::ZERO }
    }

    /// The watchdog renews the lease, and the holder loses it after this total time. Up to 30 days.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.renewal = Renewal::Watchdog { max_hold };
        self
    }

    /// The watchdog does not renew the lease.
    pub fn renewed_manually(mut self) -> Self {
        self.renewal = Renewal::Manual;
        self
    }

    /// The lease stays taken for at least this long, even if the work is done sooner or the process dies. A job that
    /// several hosts start at noon then runs once, even if their clocks differ.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    /// Who renews the lease.
    pub fn renewal(&self) -> Renewal {
        self.renewal
    }

    /// For leases that no caller ever held: they need not stay taken.
    pub(super) fn without_min_hold(mut self) -> Self {
        self.min_hold = Duration::ZERO;
        self
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    pub(super) fn minimum_hold(&self) -> Duration {
        self.min_hold
    }

    /// How long the lease lasts before its first renewal.
    pub(super) fn initial_duration(&self) -> Duration {
        self.duration.max(self.min_hold)
    }

    pub(super) fn check(&self) -> Result<(), LeaseError> {
        let allowed = Duration::from_millis(10)..=Duration::from_secs(86_400);
        for (what, time) in [("duration", self.duration), ("minimum hold", self.initial_duration())] {
            if !allowed.contains(&time) {
                return Err(LeaseError::Invalid(format!(
                    "a lease with a {what} of {time:?}: it must be from 10 ms to a day"
                )));
            }
        }
        let longest = Duration::from_secs(30 * 86_400);
        if let Renewal::Watchdog { max_hold } = self.renewal
            && !(self.initial_duration()..=longest).contains(&max_hold)
        {
            return Err(LeaseError::Invalid(format!(
                "a lease of {:?} with a maximum hold of {max_hold:?}: it must not be shorter than the lease, nor \
                 longer than 30 days",
                self.initial_duration()
            )));
        }
        Ok(())
    }
}
