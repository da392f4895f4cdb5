//! Deliveries that cannot be persisted, and that the dead-letter queue has not taken: while the broker takes nothing, for
//! example. They wait apart from the others: in a batch, each would have every order of it tried alone. A lane tries one of
//! them at a time.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::pending::{PendingDelivery, lent};
use crate::link::Backoff;
use crate::queue::Amount;

/// The deliveries that wait.
pub(super) struct Refused {
    deliveries: VecDeque<PendingDelivery>,
    /// Delays the next try after one that came to nothing.
    backoff: Backoff,
    retry_at: Instant,
    /// When the try under way began.
    begun: Option<Instant>,
}

impl Refused {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            deliveries: VecDeque::new(),
            backoff: Backoff::default(),
            retry_at: Instant::now(),
            begun: None,
        }
    }

    /// Adds a delivery that no lane has tried to park yet.
    pub(super) fn add(&mut self, delivery: PendingDelivery) {
        self.deliveries.push_back(delivery);
    }

    /// Takes over those of a lane's deliveries that the dead-letter queue did not take, and returns the others.
    /// `was_try`: whether the lane was started for one of these deliveries.
    pub(super) fn take_over(&mut self, left: Vec<PendingDelivery>, was_try: bool) -> Vec<PendingDelivery> {
        let (refused, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|pending| pending.is_refused);
        let now = Instant::now();
        if was_try {
            // It may have waited long for the broker, and the lanes are there for the others.
            let took = self.begun.take().map(|begun| now - begun).unwrap_or_default();
            if refused.is_empty() {
                self.backoff.reset();
                self.retry_at = now;
            } else {
                self.retry_at = now + self.backoff.delay().max(took);
            }
        } else if !refused.is_empty() && self.deliveries.is_empty() && self.begun.is_none() {
            self.retry_at = now + self.backoff.delay();
        }
        self.deliveries.extend(refused);
        others
    }

    /// When the next one should be tried. `None` if none waits, or one is being tried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        (self.begun.is_none() && !self.deliveries.is_empty()).then_some(self.retry_at)
    }

    /// The one that has waited longest, for a try.
    pub(super) fn take_next(&mut self) -> Option<PendingDelivery> {
        let pending = self.deliveries.pop_front()?;
        self.begun = Some(Instant::now());
        Some(pending)
    }

    /// The deliveries that wait.
    pub(super) fn deliveries(&self) -> impl Iterator<Item = &PendingDelivery> {
        self.deliveries.iter()
    }

    /// What waits.
    pub(super) fn held(&self) -> Amount {
        lent(&self.deliveries)
    }

    /// Forgets everything: the deliveries are given back.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}
