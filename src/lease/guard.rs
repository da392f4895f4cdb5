//! What a holder has in hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::{Core, ended};
use super::watchlist::Place;
use super::wire::Extension;
use super::{LeaseError, LeaseOptions, Renewal};

/// One acquisition, as guard, watchdog and release see it.
pub(super) struct Held {
    pub(super) scope: String,
    pub(super) owner: String,
    pub(super) names: Vec<String>,
    pub(super) token: i64,
    pub(super) options: LeaseOptions,
    /// When the longest hold is over.
    pub(super) until: Option<Instant>,
    /// By this process's clock, counted from before the last request was sent: Redis counts from
    /// later. `None` once it is lost, for good: a renewal that is answered after that changes
    /// nothing. Written by the watchdog and by [`Guard::renew`], read by everybody.
    ends: Mutex<Option<Instant>>,
    lost: CancellationToken,
}

impl Held {
    pub(super) fn new(
        (scope, owner): (&str, String),
        names: Vec<String>,
        token: i64,
        options: LeaseOptions,
        sent: Instant,
    ) -> Self {
        let until = match options.renewal() {
            Renewal::Watchdog { max_hold } => Some(sent + max_hold),
            Renewal::Manual => None,
        };
        Self {
            scope: scope.to_owned(),
            owner,
            names,
            token,
            options,
            until,
            ends: Mutex::new(Some(sent + options.initial_duration())),
            lost: CancellationToken::new(),
        }
    }

    /// `None` where it is lost.
    pub(super) fn ends(&self) -> Option<Instant> {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A renewal has been answered. `false` where the lease was lost meanwhile.
    pub(super) fn extended(&self, ends: Instant) -> bool {
        let mut known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *known = known.map(|known| known.max(ends));
        known.is_some()
    }

    pub(super) fn lose(&self, why: &'static str) {
        let held = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        if held.is_some() {
            metrics::counter!("leases_lost_total", "why" => why).increment(1);
            tracing::warn!(scope = self.scope, names = self.names.len(), why, "lease lost");
            self.lost.cancel();
        }
    }

    /// Lost by this process's own clock? Then it is told.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.lose("held too long");
        } else if self.ends().is_some_and(|ends| ends <= now) {
            self.lose("ended");
        }
        self.ends().is_none()
    }

    /// What a renewal asks for; never beyond the longest hold.
    pub(super) fn extension(&self, sent: Instant) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(sent));
        left.map_or(self.options.duration(), |left| self.options.duration().min(left))
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
    /// Was the guard handed to somebody? What was not need not stay for its least holding time.
    given: AtomicBool,
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
    /// At least one had ended before, or was lost: what was done at the end was not protected by it.
    /// What others hold by now was not touched.
    Late,
    /// Another guard of this acquisition still holds them.
    Shared,
}

impl Guard {
    pub(super) fn new(core: &Arc<Core>, held: Held) -> Self {
        let held = Arc::new(held);
        let place = core.watch(&held);
        let given = AtomicBool::new(false);
        Self { hold: Arc::new(Hold { core: core.clone(), held, place, given, done: false }) }
    }

    pub(super) fn given(self) -> Self {
        self.hold.given.store(true, Ordering::SeqCst);
        self
    }

    /// Higher than every token given before in the same scope, also where Redis has lost its data, as
    /// long as the clock of the Redis that answers now is not behind the one before. Write it with
    /// what the lease protects, and refuse a lower one there: nothing else keeps out a holder that
    /// was stopped for too long.
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
        let Some(ends) = held.ends() else { return Duration::ZERO };
        held.until.map_or(ends, |until| until.min(ends)).saturating_duration_since(Instant::now())
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
        let kept = self.hold.core.renew(std::slice::from_ref(held)).await? == [true];
        if !kept {
            held.lose("taken");
        }
        Ok(kept)
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
        let releasing =
            hold.core.in_background(async move { core.release(&held, held.options.minimum_hold()).await });
        ended(releasing.await)?
    }

    /// Lets the leases end by themselves: no renewal, and no release.
    pub fn abandon(self) {
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
            let must_stay = match self.given.load(Ordering::SeqCst) {
                true => held.options.minimum_hold(),
                false => Duration::ZERO,
            };
            drop(self.core.in_background(async move { core.release(&held, must_stay).await }));
        }
    }
}
