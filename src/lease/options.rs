//! For how long a lease is held, and who keeps it alive.

use std::time::Duration;

use super::LeaseError;

/// What a lease is taken for.
///
/// An explicit lease time does not switch the renewal off: that is said with
/// [`LeaseOptions::renewed_manually`].
///
/// ```
/// use std::time::Duration;
/// use doorbuster::lease::{Renewal, LeaseOptions};
///
/// let options = LeaseOptions::lasting(Duration::from_secs(5));
/// assert!(matches!(options.renewal(), Renewal::Watchdog { .. }));
/// assert_eq!(options.renewed_manually().renewal(), Renewal::Manual);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseOptions {
    lasts: Duration,
    renewal: Renewal,
    min_hold: Duration,
}

/// Who keeps a lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The process's watchdog, each time that a third of the lease has passed. After `max_hold` the
    /// lease is lost to its holder whatever he does: a holder that hangs must not lock others out
    /// for ever.
    Watchdog { max_hold: Duration },
    /// Nobody but the holder, with [`Guard::renew`](super::Guard::renew): whoever hangs, loses it.
    Manual,
}

impl Default for LeaseOptions {
    /// 30 s, renewed every 10 s, for at most 10 minutes.
    fn default() -> Self {
        Self::lasting(Duration::from_secs(30))
    }
}

impl LeaseOptions {
    /// How long others are locked out when the holder's process dies. Renewed by the watchdog, for
    /// at most 10 minutes. From 10 ms to a day.
    pub fn lasting(lasts: Duration) -> Self {
        let renewal = Renewal::Watchdog { max_hold: Duration::from_secs(600) };
        Self { lasts, renewal, min_hold: Duration::ZERO }
    }

    /// Renewed by the watchdog, and lost to its holder after this time in all. Up to 30 days.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.renewal = Renewal::Watchdog { max_hold };
        self
    }

    /// Not renewed by the watchdog.
    pub fn renewed_manually(mut self) -> Self {
        self.renewal = Renewal::Manual;
        self
    }

    /// Held for this long even if the work is done sooner, or its process dies: so that a job that
    /// several machines start at noon runs once, though their clocks differ.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    pub fn renewal(&self) -> Renewal {
        self.renewal
    }

    /// For what nobody was given: it need not stay.
    pub(super) fn without_min_hold(mut self) -> Self {
        self.min_hold = Duration::ZERO;
        self
    }

    pub(super) fn duration(&self) -> Duration {
        self.lasts
    }

    pub(super) fn minimum_hold(&self) -> Duration {
        self.min_hold
    }

    /// For how long it is taken at first.
    pub(super) fn initial_duration(&self) -> Duration {
        self.lasts.max(self.min_hold)
    }

    pub(super) fn check(&self) -> Result<(), LeaseError> {
        let allowed = Duration::from_millis(10)..=Duration::from_secs(86_400);
        for (what, time) in [("lease time", self.lasts), ("least holding time", self.initial_duration())] {
            if !allowed.contains(&time) {
                return Err(LeaseError::Invalid(format!(
                    "a {what} of {time:?}: it must be from 10 ms to a day"
                )));
            }
        }
        let longest = Duration::from_secs(30 * 86_400);
        if let Renewal::Watchdog { max_hold } = self.renewal
            && !(self.initial_duration()..=longest).contains(&max_hold)
        {
            return Err(LeaseError::Invalid(format!(
                "a lease of {:?} that is held for at most {max_hold:?}: the longest hold must not be shorter \
                 than the lease, nor longer than 30 days",
                self.initial_duration()
            )));
        }
        Ok(())
    }
}
