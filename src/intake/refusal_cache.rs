//! Refusing without the gate: "sold out", "not open yet" and "closed" come from this process's cache for buyers who
//! hold nothing. Most requests of a rush are refused, and most of them at once.
//!
//! A cached refusal never contradicts an earlier answer. Everything that can change a sale's answer takes the sale's
//! next number: an order, a returned unit, a restock, a change of state or terms, a rebuild. So the cache keeps who
//! held anything of the sale at number N, and the gate's description of the sale. While requests arrive, it keeps
//! reading the sale to check that N is still its number. A request is refused only by a reading that was requested at
//! most [`REFUSAL_MAX_AGE`] ago; if there is none, it waits for the next reading, which serves all that wait.
//!
//! The other half of the rule is in [`crate::gate::until_refusals_expire`]: a change at the gate is reported to
//! nobody before every reading from before it is too old. Buyers do not learn of their order earlier, nor operators
//! that their act is done. So nobody who knows better is refused from the cache.
//!
//! A buyer among the holders goes to the gate, and so does everyone while the number changes. The gate alone
//! decides who gets a unit, and it answers those who have one with their order instead of "sold out".

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::answer::OrderRequest;
use crate::domain::{Millis, Number, SaleId, SaleState, Sku, Verdict};
use crate::gate::{ClockReading, Gate, GateSale, REFUSAL_MAX_AGE, REFUSAL_PACE, SaleReading};

/// Maximum cached holders of a sale; a sale with more is left to the gate.
const MOST_HOLDERS: usize = 200_000;
/// Maximum cached holders of all sales together: some 30 MB.
const MOST_IN_ALL: usize = 1_000_000;
/// Maximum cached sales.
const MOST_SALES: usize = 1_000;
/// Minimum time between two listings of the holders; also at least twenty times the duration of the last one.
const LIST_EVERY: Duration = Duration::from_millis(200);
/// A sale without requests for this long is dropped from the cache.
const DROP_AFTER: Duration = Duration::from_secs(10);

/// The cache of a process; cheap to clone.
#[derive(Clone)]
pub(super) struct RefusalCache {
    gate: Gate,
    sales: Arc<Mutex<HashMap<SaleId, Arc<CachedSale>>>>,
    hasher: Arc<RandomState>,
    /// Cached holders of all sales.
    held: Arc<AtomicUsize>,
    /// Counts refusals. To look it up for each would cost more.
    refused: metrics::Counter,
}

struct CachedSale {
    /// Readings that have begun. Written by the task that reads the sale.
    begun: AtomicU64,
    /// Wakes that task.
    requested: Notify,
    /// The last reading. Written by that task, read by requests.
    readings: watch::Sender<Reading>,
}

/// One reading: the sale, and who held anything at exactly its number. `None` if the two could not be matched.
#[derive(Clone, Default)]
struct Reading {
    nth: u64,
    known: Option<Arc<Known>>,
}

impl Reading {
    fn is_fresh(&self, now: Instant) -> bool {
        self.known.as_ref().is_some_and(|known| now - known.begun < REFUSAL_MAX_AGE)
    }
}

struct Known {
    /// When the gate was asked, so at most this old.
    begun: Instant,
    /// Redis's clock.
    clock: ClockReading,
    sale: Arc<GateSale>,
    /// Listed at the sale's number.
    holders: Arc<Holders>,
}

#[derive(Default)]
struct Holders {
    number: Number,
    /// Hashes of user names. On a collision both users go to the gate.
    users: HashSet<u64>,
}

impl RefusalCache {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(gate: Gate) -> Self {
        let refused = metrics::counter!("doorbuster_intake_refused_from_memory_total");
        Self { gate, sales: Arc::default(), hasher: Arc::default(), held: Arc::default(), refused }
    }

    /// Starts caching a sale after the gate has refused a buyer for a reason that may hold for others.
    pub(super) fn begin_caching(&self, sale: &SaleId) {
        let mut sales = self.lock();
        if let Some(cached) = sales.get(sale) {
            cached.requested.notify_one();
        } else if sales.len() < MOST_SALES {
            let cached = Arc::new(CachedSale {
                begun: AtomicU64::new(0),
                requested: Notify::new(),
                readings: watch::Sender::default(),
            });
            cached.requested.notify_one();
            sales.insert(sale.clone(), cached.clone());
            tokio::spawn(self.clone().keep_reading(sale.clone(), cached));
        }
    }

    /// The refusal that the gate would have given, at a moment at most [`REFUSAL_MAX_AGE`] before this call. `None`
    /// if the gate must decide.
    pub(super) async fn refusal(&self, request: &OrderRequest, sku: &Sku) -> Option<Verdict> {
        let OrderRequest { sale, user, .. } = request;
        let cached = self.lock().get(sale).cloned()?;
        let last = cached.readings.borrow().clone();
        // Without a reading the gate decides, and there is nothing to wait for.
        let mut known = last.known.clone()?;
        let mut now = Instant::now();
        if now - known.begun >= REFUSAL_PACE {
            cached.requested.notify_one();
        }
        if !last.is_fresh(now) {
            // Waits for the next reading, not for the one under way, which may be too old when it arrives.
            let wanted = cached.begun.load(Ordering::SeqCst) + 1;
            let mut readings = cached.readings.subscribe();
            let next = readings.wait_for(|reading| {
                reading.nth >= wanted || reading.known.is_none() || reading.is_fresh(Instant::now())
            });
            known = next.await.ok()?.known.clone()?;
            now = Instant::now();
        }
        // If Redis is behind what this process has seen, the gate must freeze the sale.
        if known.sale.number < self.gate.highest_number(sale) {
            return None;
        }
        if known.holders.users.contains(&self.hasher.hash_one(user.as_str())) {
            return None;
        }
        let clock = known.clock.earliest(known.begun)..=known.clock.latest(now);
        let refusal = judge(&known.sale, clock, request, sku)?;
        self.refused.increment(1);
        Some(refusal)
    }

    /// Reads the sale as long as requests for it arrive.
    async fn keep_reading(self, sale: SaleId, cached: Arc<CachedSale>) {
        let mut holders: Option<Arc<Holders>> = None;
        let mut reader = self.gate.reader(&sale);
        let mut list_at = Instant::now();
        let mut just_listed = false;
        loop {
            let follows_list = std::mem::take(&mut just_listed);
            if !follows_list && tokio::time::timeout(DROP_AFTER, cached.requested.notified()).await.is_err() {
                break;
            }
            let begin = Instant::now();
            let nth = cached.begun.fetch_add(1, Ordering::SeqCst) + 1;
            // If the gate is away or lacks the sale, requests should get the gate's own answer.
            let read = reader.read().await.ok().flatten();
            let known = read.zip(holders.clone()).and_then(|(SaleReading { sale, clock }, holders)| {
                let is_current = sale.number == holders.number;
                is_current.then(|| Arc::new(Known { begun: begin, clock, sale, holders }))
            });
            let is_current = known.is_some();
            cached.readings.send_replace(Reading { nth, known });
            if is_current {
                tokio::time::sleep_until(begin + REFUSAL_PACE).await;
                continue;
            }
            // The sale has changed while its holders were listed. The next request makes another try.
            if follows_list {
                continue;
            }
            // No request waits meanwhile: all of them go to the gate.
            tokio::time::sleep_until(list_at).await;
            let begin = Instant::now();
            self.free(holders.take());
            holders = self.list_holders(&sale).await.map(Arc::new);
            list_at = Instant::now() + LIST_EVERY.max(begin.elapsed() * 20);
            // The next reading shows whether the list is still current.
            just_listed = true;
        }
        self.free(holders);
        self.lock().remove(&sale);
        // Sends a request that found this entry just before the removal to the gate.
        cached.readings.send_replace(Reading { nth: u64::MAX, known: None });
    }

    /// Lists everyone who holds anything of the sale; `None` if the sale changed meanwhile or has too many holders.
    async fn list_holders(&self, sale: &SaleId) -> Option<Holders> {
        let room = MOST_IN_ALL.saturating_sub(self.held.load(Ordering::Relaxed)).min(MOST_HOLDERS);
        let before = self.gate.describe(sale).await.ok()??;
        let users = self.gate.holder_hashes(sale, room, |user| self.hasher.hash_one(user)).await.ok()??;
        let after = self.gate.describe(sale).await.ok()??;
        if before.number != after.number {
            return None;
        }
        self.held.fetch_add(users.len(), Ordering::Relaxed);
        Some(Holders { number: after.number, users })
    }

    fn free(&self, holders: Option<Arc<Holders>>) {
        self.held.fetch_sub(holders.map_or(0, |holders| holders.users.len()), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SaleId, Arc<CachedSale>>> {
        self.sales.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Judges an attempt by a user without a record, with the checks of `admit.lua` in the same order. `None` if the
/// script would not refuse it, or if only the script can decide: a paused sale has a message, a rate must be
/// counted, and an item may have a separate limit. The gate's clock may show any of the times in `clock`.
fn judge(
    sale: &GateSale,
    clock: RangeInclusive<Millis>,
    request: &OrderRequest,
    sku: &Sku,
) -> Option<Verdict> {
    let (quantity, keyed) = (request.quantity, request.key.is_some());
    let (now, latest) = clock.into_inner();
    if sale.state == SaleState::Closed || sale.window.closes_at.is_some_and(|closes_at| now >= closes_at) {
        return Some(Verdict::Closed);
    }
    if !matches!(sale.state, SaleState::Open | SaleState::Draft) {
        return None;
    }
    let opens_at = sale.window.opens_at;
    // The sale may open at this moment, so the gate decides.
    if sale.state != SaleState::Draft && now < opens_at && latest >= opens_at {
        return None;
    }
    if sale.state == SaleState::Draft || now < opens_at {
        return Some(Verdict::NotOpen { now, opens_at });
    }
    let limited = sale.item_limits || sale.terms.user_rate.is_some() || sale.terms.sale_rate.is_some();
    if limited || quantity > sale.limit_per_user || (!keyed && sale.limit_per_user > 1) {
        return None;
    }
    let item = sale.items.iter().find(|item| item.sku == *sku)?;
    (item.left < i64::from(quantity)).then_some(Verdict::SoldOut)
}
