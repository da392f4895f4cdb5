//! The holder's side of a lease: the fencing token, the remaining time, and the release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::LeaseError;
use super::core::{Core, Released, joined};
use super::held::Acquisition;
use super::watchlist::Place;

/// State that the guards of one acquisition share. The last of them releases the leases.
struct Hold {
    core: Arc<Core>,
    held: Arc<Acquisition>,
    place: Place,
    /// Whether a caller has received the guard. If not, the minimum hold does not apply.
    handed_over: AtomicBool,
    done: bool,
}

/// Leases that one call took: one owner, one fencing token, held together and lost together. Dropping the guard
/// releases them in the background; [`Guard::release`] waits for the release.
#[must_use = "a guard that is dropped releases its leases"]
pub struct Guard {
    hold: Arc<Hold>,
}

impl Guard {
    /// Puts the acquisition on the watchdog's list.
    pub(super) fn new(core: &Arc<Core>, held: Arc<Acquisition>) -> Self {
        let place = core.watch(&held);
        let handed_over = AtomicBool::new(false);
        Self { hold: Arc::new(Hold { core: core.clone(), held, place, handed_over, done: false }) }
    }

    pub(super) fn handed_over(self) -> Self {
        self.hold.handed_over.store(true, Ordering::SeqCst);
        self
    }

    /// The fencing token: higher than every token given before in the same scope. This holds even if Redis lost its
    /// data, as long as the clock of the Redis that answers now is not behind the one before. Write the token with
    /// the protected data, and refuse a lower one there: nothing else keeps out a holder that was stopped for too
    /// long.
    pub fn token(&self) -> i64 {
        self.hold.held.token
    }

    /// The scope in which the names are held.
    pub fn scope(&self) -> &str {
        &self.hold.held.scope
    }

    /// The names that are held.
    pub fn names(&self) -> &[String] {
        &self.hold.held.names
    }

    /// 128 random bits as 32 hexadecimal digits, new with each acquisition.
    pub fn owner(&self) -> &str {
        &self.hold.held.owner
    }

    /// How long the leases last without another renewal, by this process's clock. Zero if they are lost.
    pub fn remaining(&self) -> Duration {
        let until = self.hold.held.valid_until();
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether the leases last longer than `margin`, even without another renewal.
    pub fn is_valid_for(&self, margin: Duration) -> bool {
        self.remaining() > margin
    }

    /// The same check as a `Result`. Call it right before COMMIT, with [`COMMIT_MARGIN`](super::COMMIT_MARGIN).
    pub fn ensure_valid(&self, margin: Duration) -> Result<(), LeaseError> {
        if self.is_valid_for(margin) { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Resolves when the leases are lost: when Redis says so, when they expire without a renewal, or when the
    /// maximum hold is over. Never later than their end by this process's clock.
    pub async fn lost(&self) {
        let held = &self.hold.held;
        loop {
            if held.is_over(Instant::now()) {
                return;
            }
            tokio::select! {
                () = held.marked_lost() => return,
                // Usually they have been renewed by then: check again.
                () = tokio::time::sleep(self.remaining()) => {}
            }
        }
    }

    /// Runs `work` until it is done. If the leases are lost first, drops it where it stands and returns the error.
    pub async fn until_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, LeaseError> {
        tokio::select! {
            biased;
            () = self.lost() => Err(self.lost_error()),
            done = work => Ok(done),
        }
    }

    /// Extends the leases to their full duration from now, with or without a watchdog. `false` if one of them is
    /// lost. After an error they last as long as before, or longer.
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

    /// Another guard of the same acquisition, for another task of this process. The last guard releases the leases.
    pub fn share(&self) -> Guard {
        Guard { hold: self.hold.clone() }
    }

    /// The number of guards of this acquisition, including this one.
    pub fn shares(&self) -> usize {
        Arc::strong_count(&self.hold)
    }

    /// Gives the leases back; leases that another owner holds by now are left alone. On return they are free, unless
    /// they are shared or stay taken for their minimum hold. After an error the release is retried in the background
    /// until the leases have expired.
    pub async fn release(self) -> Result<Released, LeaseError> {
        let Some(mut hold) = Arc::into_inner(self.hold) else { return Ok(Released::Shared) };
        hold.done = true;
        // In the background: a caller that stops waiting does not stop the release.
        let (core, held) = (hold.core.clone(), hold.held.clone());
        hold.core.watchlist.leave(hold.place);
        let min_hold = held.options.minimum_hold();
        let releasing = hold.core.in_background(async move { core.release(&held, min_hold).await });
        joined(releasing.await)?
    }

    /// Leaves the leases to expire: no renewal, and no release.
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
            let min_hold = match self.handed_over.load(Ordering::SeqCst) {
                true => held.options.minimum_hold(),
                false => Duration::ZERO,
            };
            drop(self.core.in_background(async move { core.release(&held, min_hold).await }));
        }
    }
}
