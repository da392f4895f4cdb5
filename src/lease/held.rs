//! The state of one acquisition, as its guards, the watchdog and the release see it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::request::Request;
use super::wire::Extension;
use super::{LeaseOptions, Renewal};

/// Leases that one call took: one owner, one fencing token, held together and lost together.
pub(super) struct Acquisition {
    pub(super) scope: String,
    pub(super) owner: String,
    pub(super) names: Vec<String>,
    pub(super) token: i64,
    pub(super) options: LeaseOptions,
    /// When the maximum hold is over. `None` for manual renewal.
    hold_ends: Option<Instant>,
    /// By this process's clock, counted from before the last request was sent: Redis starts counting later.
    /// `None` once the leases are lost, and for good: a renewal that is answered afterwards changes nothing. The
    /// watchdog and [`Guard::renew`](super::Guard::renew) write it, everybody reads it.
    ends: Mutex<Option<Instant>>,
    lost: CancellationToken,
}

impl Acquisition {
    /// Covers all names in `request`, which was sent at `sent`.
    pub(super) fn new(request: Request, owner: String, token: i64, sent: Instant) -> Self {
        let Request { scope, names, options, .. } = request;
        let hold_ends = match options.renewal() {
            Renewal::Watchdog { max_hold } => Some(sent + max_hold),
            Renewal::Manual => None,
        };
        Self {
            scope,
            owner,
            names,
            token,
            options,
            hold_ends,
            ends: Mutex::new(Some(sent + options.initial_duration())),
            lost: CancellationToken::new(),
        }
    }

    /// When the leases expire without another renewal. `None` if they are lost.
    pub(super) fn ends(&self) -> Option<Instant> {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When this process must stop relying on the leases: at their expiry or at the end of the maximum hold,
    /// whichever comes first. `None` if they are lost.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        self.ends().map(|ends| self.within_hold(ends))
    }

    fn within_hold(&self, time: Instant) -> Instant {
        self.hold_ends.map_or(time, |hold_ends| hold_ends.min(time))
    }

    /// Records a renewal that Redis confirmed. `false` if the leases were lost in the meantime.
    pub(super) fn record_renewal(&self, ends: Instant) -> bool {
        let mut known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *known = known.map(|known| known.max(ends));
        known.is_some()
    }

    /// Marks the leases as lost, once, and wakes those who wait for that.
    pub(super) fn lose(&self, reason: &'static str) {
        let held = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        if held.is_some() {
            metrics::counter!("doorbuster_leases_lost_total", "reason" => reason).increment(1);
            tracing::warn!(scope = self.scope, names = self.names.len(), reason, "lease lost");
            self.lost.cancel();
        }
    }

    /// Resolves when the leases are marked as lost.
    pub(super) async fn marked_lost(&self) {
        self.lost.cancelled().await;
    }

    /// Whether the leases are lost. Marks them as lost if their time is up by this process's clock.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        if self.hold_ends.is_some_and(|hold_ends| hold_ends <= now) {
            self.lose("held_too_long");
        } else if self.ends().is_some_and(|ends| ends <= now) {
            self.lose("ended");
        }
        self.ends().is_none()
    }

    /// How much time a renewal sent at `sent` requests: never beyond the maximum hold.
    pub(super) fn extension(&self, sent: Instant) -> Duration {
        let left = self.hold_ends.map(|hold_ends| hold_ends.saturating_duration_since(sent));
        left.map_or(self.options.duration(), |left| self.options.duration().min(left))
    }

    /// The same for each name, as the script takes it.
    pub(super) fn extensions(&self, sent: Instant) -> impl Iterator<Item = Extension> {
        let lasts = self.extension(sent);
        self.names.iter().map(move |name| Extension { owner: self.owner.clone(), lasts, name: name.clone() })
    }

    /// When the watchdog looks at the acquisition next: when two thirds of the lease are left, or, if it will not be
    /// renewed again, when it is over. Renewal times are rounded down to a fifteenth of the lease, so that leases
    /// which were taken one by one are renewed together.
    pub(super) fn next_look(&self, now: Instant) -> Instant {
        let Some(ends) = self.ends() else { return now };
        let over = self.within_hold(ends);
        let never_renewed_again = self.hold_ends.is_none_or(|hold_ends| hold_ends <= ends);
        if never_renewed_again {
            return over;
        }
        let duration = self.options.duration();
        let renewal = ends.checked_sub(duration / 3 * 2).unwrap_or(now);
        let renewal = renewal.checked_sub(past_grid(renewal, duration / 15)).unwrap_or(now);
        renewal.max(now).min(over)
    }
}

/// How far a time is past the last multiple of `step`, counted from an instant that all leases of the process share.
fn past_grid(time: Instant, step: Duration) -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let since = time.saturating_duration_since(*ORIGIN.get_or_init(Instant::now));
    match step.as_nanos() {
        0 => Duration::ZERO,
        step => Duration::from_nanos((since.as_nanos() % step).try_into().unwrap_or(0)),
    }
}
