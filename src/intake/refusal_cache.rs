//! Refusing without the gate: "sold out", "not yet", "too late" said from this process's memory to those who
//! hold nothing. Most of a rush is refused, and most of it at once.
//!
//! Never stale. Whatever changes what a sale could answer takes the sale's next number: an order, a unit that
//! comes back, a restock, a change of state or terms, a rebuild. So the memory is this: who held anything of
//! the sale at number N, and what else the gate says of it. While requests come the gate is asked again and
//! again whether N is still the sale's number, and a request is answered by a reading that was begun at most
//! [`REFUSAL_MAX_AGE`] ago; one that finds none waits for the next, which serves all that wait. What happens at the
//! gate after a reading was begun is told to nobody before the reading is too old to be used
//! ([`crate::gate::until_refusals_expire`]): not to the buyer that he has an order, not to the operator that his act
//! is done. So nobody who knows better is refused from memory.
//!
//! Who is among the holders is sent to the gate, as is everybody while the number moves: the gate alone decides
//! who gets a unit, and who has one is told of it and not "sold out".

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::domain::{Millis, Number, SaleId, SaleState, Sku, UserId, Verdict};
use crate::gate::{Gate, GateSale, REFUSAL_MAX_AGE};

/// Holders that are remembered of a sale, at most; a sale with more is left to the gate.
const MOST_HOLDERS: usize = 200_000;
/// And of all sales together: some 30 MB.
const MOST_IN_ALL: usize = 1_000_000;
/// Sales that are remembered at once.
const MOST_SALES: usize = 1_000;
/// Between two readings of one sale, at least: well below [`REFUSAL_MAX_AGE`], so that the next is there before the
/// last is too old.
const PACE: Duration = Duration::from_millis(1);
/// Between two looks at who holds anything, at least; and twenty times as long as the last one took.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A sale that nobody has asked for is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct RefusalCache {
    gate: Gate,
    sales: Arc<Mutex<HashMap<SaleId, Arc<Remembered>>>>,
    hasher: Arc<RandomState>,
    /// Holders that are remembered, of all sales.
    held: Arc<AtomicUsize>,
}

struct Remembered {
    /// Readings that have begun.
    begun: AtomicU64,
    asked: Notify,
    told: watch::Sender<Reading>,
}

/// What a reading found: the sale, and who held anything at that very number. `None` where that is not known.
#[derive(Clone, Default)]
struct Reading {
    nth: u64,
    known: Option<Arc<Known>>,
}

impl Reading {
    fn is_fresh(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.begun.elapsed() < REFUSAL_MAX_AGE)
    }
}

struct Known {
    /// When the gate was asked.
    begun: Instant,
    sale: GateSale,
    /// Of the sale's number.
    holders: Arc<Holders>,
}

#[derive(Default)]
struct Holders {
    number: Number,
    /// By the hash of their names: two that meet are both sent to the gate.
    users: HashSet<u64>,
}

impl RefusalCache {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(gate: Gate) -> Self {
        Self { gate, sales: Arc::default(), hasher: Arc::default(), held: Arc::default() }
    }

    /// The gate has refused somebody: from now on it may be worth remembering.
    pub(super) fn refused(&self, sale: &SaleId) {
        let mut sales = self.lock();
        if let Some(remembered) = sales.get(sale) {
            remembered.asked.notify_one();
        } else if sales.len() < MOST_SALES {
            let remembered = Arc::new(Remembered {
                begun: AtomicU64::new(0),
                asked: Notify::new(),
                told: watch::Sender::default(),
            });
            remembered.asked.notify_one();
            sales.insert(sale.clone(), remembered.clone());
            tokio::spawn(self.clone().keep(sale.clone(), remembered));
        }
    }

    /// What the gate would have refused this with, at a moment that is at most [`REFUSAL_MAX_AGE`] before this was
    /// called. `None` where the gate has to be asked.
    pub(super) async fn refusal(
        &self,
        sale: &SaleId,
        user: &UserId,
        sku: &Sku,
        quantity: u32,
        keyed: bool,
    ) -> Option<Verdict> {
        let remembered = self.lock().get(sale).cloned()?;
        let last = remembered.told.borrow().clone();
        // What is not known is the gate's to say, and needs no waiting.
        let mut known = last.known.clone()?;
        if known.begun.elapsed() >= PACE {
            remembered.asked.notify_one();
        }
        if !last.is_fresh() {
            // Not the one that is under way: it may be too old when it comes.
            let wanted = remembered.begun.load(Ordering::SeqCst) + 1;
            let mut told = remembered.told.subscribe();
            let next = told
                .wait_for(|reading| reading.nth >= wanted || reading.known.is_none() || reading.is_fresh());
            known = next.await.ok()?.known.clone()?;
        }
        // A gate that is behind what this process has seen is the gate's to freeze.
        if known.sale.number < self.gate.highest_number(sale) {
            return None;
        }
        if known.holders.users.contains(&self.hasher.hash_one(user.as_str())) {
            return None;
        }
        // Both are rounded down.
        let latest = known.sale.now.plus(known.begun.elapsed()).plus(Duration::from_millis(2));
        judge(&known.sale, latest, sku, quantity, keyed)
    }

    /// Reads the sale for as long as somebody asks for it.
    async fn keep(self, sale: SaleId, remembered: Arc<Remembered>) {
        let mut holders: Option<Arc<Holders>> = None;
        let mut look_at = Instant::now();
        while tokio::time::timeout(FORGET_AFTER, remembered.asked.notified()).await.is_ok() {
            let begin = Instant::now();
            let nth = remembered.begun.fetch_add(1, Ordering::SeqCst) + 1;
            // Where the gate is away, or the sale is not in it, the gate's own answer is the better one.
            let read = self.gate.describe(&sale).await.ok().flatten();
            let known = read.zip(holders.clone()).filter(|(sale, holders)| sale.number == holders.number);
            let known = known.map(|(sale, holders)| Arc::new(Known { begun: begin, sale, holders }));
            let is_current = known.is_some();
            remembered.told.send_replace(Reading { nth, known });
            if is_current {
                tokio::time::sleep_until(begin + PACE).await;
                continue;
            }
            // Nobody waits meanwhile: all go to the gate.
            tokio::time::sleep_until(look_at).await;
            let begin = Instant::now();
            self.give_back(holders.take());
            holders = self.look(&sale).await.map(Arc::new);
            look_at = Instant::now() + LOOK_EVERY.max(begin.elapsed() * 20);
            // Only a reading says whether it is still so.
            remembered.asked.notify_one();
        }
        self.give_back(holders);
        self.lock().remove(&sale);
        // Whoever asked in this very moment is sent to the gate.
        remembered.told.send_replace(Reading { nth: u64::MAX, known: None });
    }

    /// Who holds anything of the sale; `None` where that changed while it was read, or where there are too
    /// many.
    async fn look(&self, sale: &SaleId) -> Option<Holders> {
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

    fn give_back(&self, holders: Option<Arc<Holders>>) {
        self.held.fetch_sub(holders.map_or(0, |holders| holders.users.len()), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SaleId, Arc<Remembered>>> {
        self.sales.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// As `admit.lua` judges an attempt of somebody who has no record, in its order. `None` for what it would
/// not refuse, and for what it alone can judge: a paused sale has something to say, a rate has to be counted,
/// an item may have a limit of its own. `latest`: what the gate's clock says by now, at most.
fn judge(sale: &GateSale, latest: Millis, sku: &Sku, quantity: u32, keyed: bool) -> Option<Verdict> {
    let now: Millis = sale.now;
    if sale.state == SaleState::Closed || sale.window.closes_at.is_some_and(|closes_at| now >= closes_at) {
        return Some(Verdict::Closed);
    }
    if !matches!(sale.state, SaleState::Open | SaleState::Draft) {
        return None;
    }
    let opens_at = sale.window.opens_at;
    // In its last moment it is the gate's to say.
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
