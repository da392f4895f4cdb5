//! What this process knows of the places that the database has reached.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use futures_util::future::BoxFuture;

use crate::domain::{Place, SaleId};

/// The places of replays begin so: no sale can have such an id.
const REPLAY: &str = "_replay-";

/// A database that lacks commits which it had confirmed: it was restored from a backup, or a replica that was behind
/// has replaced it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database went back in time: it had reached place {witnessed} of {} and is at {found}; bring it up to \
     date with `doorbuster replay run log`", subject(.sale)
)]
pub struct Behind {
    /// The first sale, by id, that it is behind in, or the replay.
    pub sale: String,
    /// The highest place that it had confirmed.
    pub witnessed: Place,
    /// Its place now.
    pub found: Place,
}

impl Behind {
    /// Whether it lacks something that a replay of this process had restored.
    pub fn is_of_replay(&self) -> bool {
        self.sale.starts_with(REPLAY)
    }
}

fn subject(place_of: &str) -> String {
    match place_of.starts_with(REPLAY) {
        true => "a replay".into(),
        false => format!("sale {place_of}"),
    }
}

/// Another store answers, but may have lost what it had witnessed, for this reason: nothing may be written yet.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotHeard(pub String);

/// What another store has witnessed; `None` if it does not answer.
pub type Heard = Result<Option<Vec<(SaleId, Place)>>, NotHeard>;

/// Asks another store for the places that it has witnessed.
pub(in crate::store) type Hear = dyn Fn() -> BoxFuture<'static, Heard> + Send + Sync;

/// One for each new connection, because it may lead to another server or to a restored one; and one for the start.
#[derive(Clone)]
pub(in crate::store) struct Doubts(Arc<AtomicU64>);

impl Doubts {
    pub(in crate::store) fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The highest place of each sale that this process has seen, and whether the database is known to be behind one.
pub(in crate::store) struct Witnesses {
    highest: Mutex<BTreeMap<String, Place>>,
    /// The latest line of any of them.
    line: AtomicI64,
    behind: Mutex<Option<Behind>>,
    pub(in crate::store) hear: OnceLock<Box<Hear>>,
    /// Whether the other store has ever answered.
    pub(in crate::store) heard: AtomicBool,
    /// What the replay of this process restores while the database is behind has a place of its own, by this name.
    replay: OnceLock<String>,
    /// Lets one caller hear the witnesses while the others wait.
    pub(in crate::store) hearing: tokio::sync::Mutex<()>,
    doubts: Doubts,
    /// How many of them the last comparison has settled.
    settled: AtomicU64,
}

impl Default for Witnesses {
    fn default() -> Self {
        Self {
            highest: Mutex::default(),
            line: AtomicI64::new(Place::FIRST.line),
            behind: Mutex::default(),
            hear: OnceLock::new(),
            heard: AtomicBool::new(false),
            replay: OnceLock::new(),
            hearing: tokio::sync::Mutex::default(),
            doubts: Doubts(Arc::new(AtomicU64::new(1))),
            settled: AtomicU64::new(0),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Witnesses {
    /// Raises the highest place; a lower one changes nothing.
    pub(in crate::store) fn observe(&self, sale: &str, place: Place) {
        // It says nothing, and a name that anybody may have made up must not be kept for ever.
        if place == Place::default() {
            return;
        }
        self.line.fetch_max(place.line, Ordering::SeqCst);
        let mut highest = locked(&self.highest);
        match highest.get_mut(sale) {
            Some(known) => *known = place.max(*known),
            None => {
                highest.insert(sale.to_owned(), place);
            }
        }
    }

    pub(in crate::store) fn highest(&self, sale: &str) -> Place {
        locked(&self.highest).get(sale).copied().unwrap_or_default()
    }

    pub(in crate::store) fn all(&self) -> BTreeMap<String, Place> {
        locked(&self.highest).clone()
    }

    /// The place that this process's replay of this source advances. A source has one replay at a time, so nobody else
    /// advances it meanwhile.
    pub(in crate::store) fn begin_replay(&self, source: &str) -> &str {
        self.replay.get_or_init(|| format!("{REPLAY}{source}"))
    }

    /// The same, once a replay has begun.
    pub(in crate::store) fn replay(&self) -> &str {
        self.begin_replay("none")
    }

    /// The latest line of any sale; 1 before the first commit.
    pub(in crate::store) fn line(&self) -> i64 {
        self.line.load(Ordering::SeqCst)
    }

    pub(in crate::store) fn behind(&self) -> Option<Behind> {
        locked(&self.behind).clone()
    }

    /// Whether the database is behind, by the places that a transaction is about to commit: each must be above every
    /// place that was seen of its sale.
    pub(in crate::store) fn behind_of(&self, next: &[(String, Place)]) -> Option<Behind> {
        let highest = locked(&self.highest);
        next.iter().find_map(|(sale, next)| {
            let witnessed = highest.get(sale).copied().filter(|witnessed| witnessed >= next)?;
            let found = Place { number: next.number - 1, ..*next };
            Some(Behind { sale: sale.clone(), witnessed, found })
        })
    }

    /// Records the result of a comparison, and reports it if it has changed.
    pub(in crate::store) fn judge(&self, found: Option<Behind>) {
        metrics::gauge!("doorbuster_database_behind").set(f64::from(u8::from(found.is_some())));
        let mut behind = locked(&self.behind);
        if *behind == found {
            return;
        }
        match &found {
            Some(behind) => tracing::error!("{behind}; until then nothing is written to it"),
            None => tracing::info!("the database is up to date again"),
        }
        *behind = found;
    }

    /// Whether this process knows how far the database had come, from the other store or because there is none.
    pub(in crate::store) fn have_heard(&self) -> bool {
        self.hear.get().is_none() || self.heard.load(Ordering::SeqCst)
    }

    /// For the pool, which must not hold the witnesses: they may hold the pool.
    pub(in crate::store) fn doubts_of_pool(&self) -> Doubts {
        self.doubts.clone()
    }

    pub(in crate::store) fn doubts(&self) -> u64 {
        self.doubts.0.load(Ordering::SeqCst)
    }

    /// Whether a connection was opened that no comparison has settled.
    pub(in crate::store) fn is_in_doubt(&self) -> bool {
        self.settled.load(Ordering::SeqCst) < self.doubts()
    }

    /// Settles the doubts that were there before a comparison began.
    pub(in crate::store) fn settle(&self, doubts: u64) {
        self.settled.fetch_max(doubts, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody may ask for the orders of a sale that does not exist.
    #[test]
    fn a_sale_of_which_nothing_is_known_takes_no_memory() {
        let witnesses = Witnesses::default();
        witnesses.observe("made-up", Place::default());
        assert_eq!(witnesses.all(), BTreeMap::new());
        witnesses.observe("real", Place::FIRST);
        witnesses.observe("real", Place::default());
        assert_eq!(witnesses.highest("real"), Place::FIRST);
    }
}
