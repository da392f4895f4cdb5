//! What a holder has in hand.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::watchlist::Place;
use super::wire::Extension;
use super::{Core, LeaseError, Renewal, Terms};

/// One acquisition, as guard, watchdog and release see it.
pub(super) struct Held {
    pub(super) scope: String,
    pub(super) owner: String,
    pub(super) names: Vec<String>,
    pub(super) token: i64,
    pub(super) terms: Terms,
    /// When the longest hold is over.
    pub(super) until: Option<Instant>,
    /// By this process's clock, counted from before the last request was sent: Redis counts from
    /// later. Written by the watchdog and by [`Guard::renew`], read by everybody.
    ends: Mutex<Instant>,
    lost: CancellationToken,
}

impl Held {
    pub(super) fn new(
        (scope, owner): (&str, String),
        names: Vec<String>,
        token: i64,
        terms: Terms,
        sent: Instant,
    ) -> Self {
        let until = match terms.renewal() {
            Renewal::Watchdog { at_most } => Some(sent + at_most),
            Renewal::ByHand => None,
        };
        Self {
            scope: scope.to_owned(),
            owner,
            names,
            token,
            terms,
            until,
            ends: Mutex::new(sent + terms.first()),
            lost: CancellationToken::new(),
        }
    }

    pub(super) fn ends(&self) -> Instant {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A renewal that was sent then has been answered.
    pub(super) fn extended(&self, ends: Instant) {
        let mut known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *known = ends.max(*known);
    }

    pub(super) fn lose(&self, why: &'static str) {
        if !self.lost.is_cancelled() {
            metrics::counter!("leases_lost_total", "why" => why).increment(1);
            tracing::warn!(scope = self.scope, names = self.names.len(), why, "lease lost");
            self.lost.cancel();
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Lost by this process's own clock? Then it is told.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.lose("held too long");
        } else if self.ends() <= now {
            self.lose("ended");
        }
        self.is_lost()
    }

    /// What a renewal asks for; never beyond the longest hold.
    pub(super) fn extension(&self, sent: Instant) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(sent));
        left.map_or(self.terms.lasts(), |left| self.terms.lasts().min(left))
    }

    pub(super) fn extensions(&self, lasts: Duration) -> impl Iterator<Item = Extension> {
        self.names.iter().map(move |name| Extension { owner: self.owner.clone(), lasts, name: name.clone() })
    }
}

/// The last of the guards that share an acquisition lets go of it.
struct Hold {
    core: Arc<Core>,
    held: Arc<Held>,
    place: Place,
    done: bool,
}

/// Leases taken by one acquisition: one owner, one fencing token, held together and lost together.
/// Dropping the guard releases them in the background; [`Guard::release`] waits for that.
#[must_use = "a guard that is dropped releases its leases"]
pub struct Guard {
    hold: Arc<Hold>,
}

/// What [`Guard::release`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// All leases were still held; they are free now, or stay until their least holding time.
    Freed,
    /// At least one had ended before: what was done at the end was not protected by it. What others
    /// hold by now was not touched.
    Late,
    /// Another guard of this acquisition still holds them.
    Shared,
}

impl Guard {
    pub(super) fn new(core: &Arc<Core>, held: Held) -> Self {
        let held = Arc::new(held);
        let place = core.watch(&held);
        Self { hold: Arc::new(Hold { core: core.clone(), held, place, done: false }) }
    }

    /// Higher than every token given before in the same scope, also where Redis has lost its data
    /// (as long as its clock was not set back as well). Write it with what the lease protects, and
    /// refuse a lower one there: nothing else keeps out a holder that was stopped for too long.
    pub fn token(&self) -> i64 {
        self.hold.held.token
    }

    pub fn scope(&self) -> &str {
        &self.hold.held.scope
    }

    pub fn names(&self) -> &[String] {
        &self.hold.held.names
    }

    /// 128 random bits, new with each acquisition.
    pub fn owner(&self) -> &str {
        &self.hold.held.owner
    }

    /// How long the leases last without another renewal, by this process's own clock.
    pub fn remaining(&self) -> Duration {
        let held = &self.hold.held;
        if held.is_lost() {
            return Duration::ZERO;
        }
        let ends = held.until.map_or(held.ends(), |until| until.min(held.ends()));
        ends.saturating_duration_since(Instant::now())
    }

    /// Will the leases last for `margin` more, even without another renewal?
    pub fn is_valid_for(&self, margin: Duration) -> bool {
        self.remaining() > margin
    }

    /// The same as an error. Ask before COMMIT, with what a commit takes as margin.
    pub fn ensure_valid(&self, margin: Duration) -> Result<(), LeaseError> {
        if self.is_valid_for(margin) { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Resolves when the leases are lost: when Redis says so, when their time is over without a
    /// renewal, or when they were held for as long as is allowed. Not later than the local end.
    pub async fn lost(&self) {
        let held = &self.hold.held;
        loop {
            if held.is_over(Instant::now()) {
                return;
            }
            tokio::select! {
                () = held.lost.cancelled() => return,
                // Renewed meanwhile, as a rule: look again.
                () = tokio::time::sleep(self.remaining()) => {}
            }
        }
    }

    /// Does the work unless the leases are lost before it is done: then it is dropped where it
    /// stands.
    pub async fn until_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, LeaseError> {
        tokio::select! {
            biased;
            () = self.lost() => Err(self.lost_error()),
            done = work => Ok(done),
        }
    }

    /// Extends the leases to their full time from now, beside the watchdog or instead of it. `false`
    /// where one of them is lost. After an error they last as long as before, or longer.
    pub async fn renew(&self) -> Result<bool, LeaseError> {
        let held = &self.hold.held;
        if held.is_over(Instant::now()) {
            return Ok(false);
        }
        self.hold.core.renew(std::slice::from_ref(held)).await.map(|kept| kept == [true])
    }

    /// Another guard of the same acquisition, for another task of this process: the leases are
    /// released with the last of them.
    pub fn share(&self) -> Guard {
        Guard { hold: self.hold.clone() }
    }

    /// Guards of this acquisition, this one included.
    pub fn shares(&self) -> usize {
        Arc::strong_count(&self.hold)
    }

    /// Gives the leases back. What another owner holds by now is not touched. On return they are
    /// free, unless they are shared or have to stay for their least holding time. After an error it
    /// is tried again in the background until they end by themselves.
    pub async fn release(self) -> Result<Released, LeaseError> {
        let Some(mut hold) = Arc::into_inner(self.hold) else { return Ok(Released::Shared) };
        hold.done = true;
        // In a task of its own: whoever stops waiting does not stop the release.
        let (core, held) = (hold.core.clone(), hold.held.clone());
        hold.core.watchlist.leave(hold.place);
        let releasing = hold.core.in_background(async move { core.release(&held).await });
        match releasing.await {
            Ok(released) => released,
            Err(_) => Err(LeaseError::Ending),
        }
    }

    /// Lets the leases end by themselves: no renewal, and no release.
    pub fn let_run_out(self) {
        if let Some(mut hold) = Arc::into_inner(self.hold) {
            hold.done = true;
            hold.core.watchlist.leave(hold.place);
        }
    }

    fn lost_error(&self) -> LeaseError {
        LeaseError::Lost { scope: self.scope().to_owned(), names: self.names().join(" ") }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.core.watchlist.leave(self.place);
        if !self.done {
            let (core, held) = (self.core.clone(), self.held.clone());
            drop(self.core.in_background(async move { core.release(&held).await }));
        }
    }
}
