//! Leases of others, as this process has seen them. Redis's clock may step, because a failover brings that of another host:
//! a lease that has ended by it may still be held. A process that has seen a lease unchanged for as long as it was taken for,
//! by its own monotonic clock, knows better: its holder has not renewed it, and no longer relies on it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::request::Request;
use super::wire::{CLOCK_STEP, Held};

/// More are not kept. Forgetting one costs waiting, and nothing else.
const MOST: usize = 10_000;

/// A lease is forgotten when it was first seen longer ago than this: by then it has been renewed, or taken by somebody.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// A lease that somebody holds, unchanged since it was first seen.
#[derive(Clone, Copy)]
struct Sighting {
    ends: i64,
    lasts: Duration,
    since: Instant,
}

impl Sighting {
    /// How long until nobody can hold it any more.
    fn left(&self, now: Instant) -> Duration {
        self.lasts.saturating_sub(now.saturating_duration_since(self.since))
    }
}

/// The leases of others, by scope and name.
#[derive(Default)]
pub(super) struct Sightings {
    seen: Mutex<HashMap<(String, String), Sighting>>,
}

impl Sightings {
    /// The names of the request whose leases have ended, each with its end by Redis's clock.
    pub(super) fn ended(&self, request: &Request, now: Instant) -> Vec<(String, i64)> {
        self.locked(|seen| {
            if seen.is_empty() {
                return Vec::new();
            }
            let ended = |name: &String| {
                let sighting = seen.get(&(request.scope.clone(), name.clone()))?;
                sighting.left(now).is_zero().then(|| (name.clone(), sighting.ends))
            };
            request.names.iter().filter_map(ended).collect()
        })
    }

    /// Records a lease that Redis shows, and returns how long it may still be held, unless it is renewed. `now` is after the
    /// reply.
    pub(super) fn see(&self, scope: &str, name: &str, held: Held, now: Instant) -> Duration {
        // A lease that lasts no time at all cannot be: nothing is concluded from it.
        let lasts = if held.lasts.is_zero() { CLOCK_STEP } else { held.lasts };
        let first_seen = Sighting { ends: held.ends, lasts, since: now };
        self.locked(|seen| {
            if seen.len() >= MOST {
                seen.retain(|_, sighting| now.saturating_duration_since(sighting.since) < FORGET_AFTER);
            }
            if seen.len() >= MOST {
                seen.clear();
            }
            let sighting = seen.entry((scope.to_owned(), name.to_owned())).or_insert(first_seen);
            if sighting.ends != held.ends {
                *sighting = first_seen;
            }
            if held.left.is_zero() {
                sighting.left(now).min(CLOCK_STEP.saturating_sub(held.ended_ago))
            } else {
                held.left
            }
        })
    }

    /// Forgets the names that were taken.
    pub(super) fn forget<'a>(&self, scope: &str, names: impl Iterator<Item = &'a String>) {
        self.locked(|seen| {
            if !seen.is_empty() {
                for name in names {
                    seen.remove(&(scope.to_owned(), name.clone()));
                }
            }
        });
    }

    fn locked<T>(&self, work: impl FnOnce(&mut HashMap<(String, String), Sighting>) -> T) -> T {
        work(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::super::LeaseOptions;
    use super::super::request::Mode;
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_lease_ends_once_it_was_seen_unchanged_for_its_whole_time() {
        let (sightings, began) = (Sightings::default(), Instant::now());
        let request = Request::checked("sale", ["ada"], LeaseOptions::default(), Mode::Free).unwrap();
        let held =
            |ends, left, ended_ago| Held { left: ms(left), ended_ago: ms(ended_ago), ends, lasts: ms(5_000) };
        assert_eq!(sightings.see("sale", "ada", held(1_000, 3_000, 0), began), ms(3_000));
        // Its clock has stepped by ten seconds.
        assert_eq!(sightings.see("sale", "ada", held(1_000, 0, 9_000), began + ms(2_000)), ms(1_000));
        assert_eq!(sightings.see("sale", "ada", held(1_000, 0, 500), began + ms(2_000)), ms(3_000));
        assert!(sightings.ended(&request, began + ms(4_999)).is_empty());
        assert_eq!(sightings.ended(&request, began + ms(5_000)), [("ada".to_owned(), 1_000)]);
        // Its holder renews it after all.
        assert_eq!(sightings.see("sale", "ada", held(6_000, 0, 500), began + ms(5_000)), ms(5_000));
        assert!(sightings.ended(&request, began + ms(9_999)).is_empty());
        sightings.forget("sale", request.names.iter());
        assert!(sightings.ended(&request, began + ms(60_000)).is_empty());
    }

    #[test]
    fn it_keeps_so_many_leases_and_no_more() {
        let (sightings, now) = (Sightings::default(), Instant::now());
        let held = Held { left: ms(1), ended_ago: ms(0), ends: 1, lasts: ms(1) };
        for nth in 0..3 * MOST {
            sightings.see("sale", &nth.to_string(), held, now);
        }
        assert!(sightings.locked(|seen| seen.len()) <= MOST);
    }
}
