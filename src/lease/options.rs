//! For how long a lease is held, and who keeps it alive.

use std::time::Duration;

use super::LeaseError;

/// What a lease is taken for.
///
/// An explicit lease time does not switch the renewal off: that is said with
/// [`LeaseOptions::renewed_by_hand`].
///
/// ```
/// use std::time::Duration;
/// use doorbuster::lease::{Renewal, LeaseOptions};
///
/// let terms = LeaseOptions::lasting(Duration::from_secs(5));
/// assert!(matches!(terms.renewal(), Renewal::Watchdog { .. }));
/// assert_eq!(terms.renewed_by_hand().renewal(), Renewal::ByHand);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseOptions {
    lasts: Duration,
    renewal: Renewal,
    at_least: Duration,
}

/// Who keeps a lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The process's watchdog, each time that a third of the lease has passed. After `at_most` the
    /// lease is lost to its holder whatever he does: a holder that hangs must not lock others out
    /// for ever.
    Watchdog { at_most: Duration },
    /// Nobody but the holder, with [`Guard::renew`](super::Guard::renew): whoever hangs, loses it.
    ByHand,
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
        let renewal = Renewal::Watchdog { at_most: Duration::from_secs(600) };
        Self { lasts, renewal, at_least: Duration::ZERO }
    }

    /// Renewed by the watchdog, and lost to its holder after this time in all. Up to 30 days.
    pub fn at_most(mut self, at_most: Duration) -> Self {
        self.renewal = Renewal::Watchdog { at_most };
        self
    }

    /// Not renewed by the watchdog.
    pub fn renewed_by_hand(mut self) -> Self {
        self.renewal = Renewal::ByHand;
        self
    }

    /// Held for this long even if the work is done sooner, or its process dies: so that a job that
    /// several machines start at noon runs once, though their clocks differ.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.at_least = at_least;
        self
    }

    pub fn renewal(&self) -> Renewal {
        self.renewal
    }

    /// For what nobody was given: it need not stay.
    pub(super) fn for_nobody(mut self) -> Self {
        self.at_least = Duration::ZERO;
        self
    }

    pub(super) fn lasts(&self) -> Duration {
        self.lasts
    }

    pub(super) fn must_stay(&self) -> Duration {
        self.at_least
    }

    /// For how long it is taken at first.
    pub(super) fn first(&self) -> Duration {
        self.lasts.max(self.at_least)
    }

    pub(super) fn check(&self) -> Result<(), LeaseError> {
        let allowed = Duration::from_millis(10)..=Duration::from_secs(86_400);
        for (what, time) in [("lease time", self.lasts), ("least holding time", self.first())] {
            if !allowed.contains(&time) {
                return Err(LeaseError::Invalid(format!(
                    "a {what} of {time:?}: it must be from 10 ms to a day"
                )));
            }
        }
        let longest = Duration::from_secs(30 * 86_400);
        if let Renewal::Watchdog { at_most } = self.renewal
            && !(self.first()..=longest).contains(&at_most)
        {
            return Err(LeaseError::Invalid(format!(
                "a lease of {:?} that is held for at most {at_most:?}: the longest hold must not be shorter \
                 than the lease, nor longer than 30 days",
                self.first()
            )));
        }
        Ok(())
    }
}
