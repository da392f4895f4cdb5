//! Waiting for leases: take calls, separated by sleeps that a release cuts short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt as _;

use super::core::Core;
use super::guard::Guard;
use super::leases::{Leases, MAX_WAIT};
use super::request::{Mode, Request};
use super::take::{TakeReply, take};
use super::waiters::Waiter;
use super::{LeaseError, LeaseOptions};
use crate::link::{Backoff, Fault};

/// The longest sleep between two calls if no release is announced; up to half of it is cut off at random.
const POLL_EVERY: Duration = Duration::from_secs(1);

impl Leases {
    /// Takes all of `names` or none, and waits up to `within` for all of them to be free at once; `None` if they were
    /// not. It holds none while it waits for another, so two callers that want the same names in a different order do
    /// not block each other.
    ///
    /// A release wakes one waiter of the name in each process. Each waiter also looks by itself when the lease expires,
    /// and about once a second. Waiters are not served in order. While Redis is unavailable, calls are retried with up
    /// to two seconds in between, and the last error is returned when the time is up. A request that is still under way
    /// then gets up to three times the reply timeout to finish.
    ///
    /// A dropped future leaves nothing behind.
    pub async fn acquire<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        options: LeaseOptions,
        within: Duration,
    ) -> Result<Option<Guard>, LeaseError> {
        let request = Request::checked(scope, names, options, Mode::AllOrWait)?;
        let deadline = Instant::now() + within.min(MAX_WAIT);
        let waiting =
            Waiting { core: &self.core, request, deadline, waiter: None, backoff: Backoff::default() };
        waiting.run().await
    }
}

/// One call of [`Leases::acquire`].
struct Waiting<'a> {
    core: &'a Arc<Core>,
    request: Request,
    deadline: Instant,
    /// The place in the line of the name that is waited for.
    waiter: Option<Waiter>,
    backoff: Backoff,
}

/// The next step after a call.
enum Next {
    Return(Option<Guard>),
    /// Call again right away.
    Repeat,
    Sleep(Duration),
}

impl Waiting<'_> {
    async fn run(mut self) -> Result<Option<Guard>, LeaseError> {
        loop {
            if self.is_late() {
                self.request.mode = Mode::AllOrNone;
            }
            let next = match take(self.core, self.request.clone()).await {
                Ok(reply) => self.after_reply(reply).await?,
                Err(error) => self.after_error(error)?,
            };
            match next {
                Next::Return(guard) => return Ok(guard),
                Next::Repeat => {}
                Next::Sleep(pause) => self.sleep(pause).await,
            }
        }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    async fn after_reply(&mut self, reply: TakeReply) -> Result<Next, LeaseError> {
        if reply.guard.is_some() {
            self.use_up_wake_up();
            return Ok(Next::Return(reply.guard));
        }
        self.backoff.reset();
        if self.is_late() {
            // The wake-up, if there was one, came to nothing: another process was quicker.
            self.use_up_wake_up();
            return Ok(Next::Return(None));
        }
        let (name, ends_in) = busiest(&self.request.names, &reply.busy_for, self.waiter.as_ref())?;
        if !self.waiter.as_ref().is_some_and(|waiter| waiter.waits_for(name)) {
            let before = self.waiter.replace(self.core.waiters.enter(&self.request.scope, name));
            let changed_lines = before.is_some();
            drop(before);
            self.core.listener.notify_one();
            // Calls once more after joining the line, before it sleeps. After a change of lines it pauses first, or two
            // names could alternate for ever.
            if changed_lines {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            return Ok(Next::Repeat);
        }
        // Spread at random, so that waiters do not all call at the same instant.
        let chance = rand::rng().random_range(0.5..=1.0);
        let expiry = ends_in + Duration::from_millis(20).mul_f64(chance);
        Ok(Next::Sleep(expiry.min(POLL_EVERY.mul_f64(chance))))
    }

    fn after_error(&mut self, error: LeaseError) -> Result<Next, LeaseError> {
        match error {
            LeaseError::Redis(fault @ (Fault::Unavailable(_) | Fault::Late(_) | Fault::NoScript))
                if !self.is_late() =>
            {
                tracing::debug!(%fault, "retrying to take a lease");
                // Dropped: it passes on its wake-up, and the next reply decides which name to wait for.
                self.waiter = None;
                Ok(Next::Sleep(self.backoff.delay()))
            }
            error => Err(error),
        }
    }

    /// Leaves the line without passing on the wake-up that led to the last call.
    fn use_up_wake_up(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            waiter.satisfied();
        }
    }

    /// Sleeps until woken, but no longer than `pause`, and not past the deadline.
    async fn sleep(&mut self, pause: Duration) {
        let pause = pause.min(self.deadline.saturating_duration_since(Instant::now()));
        let pause = tokio::time::sleep(pause.max(Duration::from_millis(1)));
        let Some(waiter) = &mut self.waiter else { return pause.await };
        let woken = tokio::select! {
            () = waiter.woken() => true,
            () = pause => false,
        };
        if !woken {
            waiter.wakes_by_itself();
        }
    }
}

/// The busy name to wait for, and the time until its lease expires: the name that is already waited for, or otherwise
/// the one whose lease lasts longest.
fn busiest<'a>(
    names: &'a [String],
    busy_for: &[Option<Duration>],
    waiter: Option<&Waiter>,
) -> Result<(&'a str, Duration), LeaseError> {
    let busy = names.iter().zip(busy_for).filter_map(|(name, left)| Some((name.as_str(), (*left)?)));
    busy.max_by_key(|(name, left)| (waiter.is_some_and(|waiter| waiter.waits_for(name)), *left))
        .ok_or_else(|| Fault::Broken("no lease was granted, although no name is taken".into()).into())
}
