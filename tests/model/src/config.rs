//! Bounded configurations of the one model: they differ only in their budgets, and in what is planted.

use crate::mistakes::Mistake;
use crate::state::Budget;

/// How much may happen in a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in tables and tests.
    pub name: &'static str,
    /// Units of the one item. The limit per user is one.
    pub stock: u8,
    /// Idempotency keys that each user clicks with.
    pub keys: u8,
    /// Workers that run.
    pub workers: u8,
    /// What people and faults may do.
    pub budget: Budget,
    /// What is planted.
    pub mistake: Mistake,
    /// What the model has found in the protocol, and this run leaves out to look further.
    pub left_out: Vec<Finding>,
}

/// A weakness that the model has found. `docs/model.md` has the trace of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finding {
    /// The database goes back within a second of a commit of which only one front knows: the limit that decision 41 names.
    SwiftLoss,
}

impl Finding {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::SwiftLoss];
}

impl Config {
    /// The same, in which this finding may happen.
    pub fn showing(mut self, finding: Finding) -> Self {
        self.left_out.retain(|left_out| *left_out != finding);
        self
    }

    /// Whether a finding is left out.
    pub fn leaves_out(&self, finding: Finding) -> bool {
        self.left_out.contains(&finding)
    }

    fn named(name: &'static str, stock: u8, keys: u8, workers: u8, budget: Budget) -> Self {
        Self { name, stock, keys, workers, budget, mistake: Mistake::None, left_out: Finding::ALL.to_vec() }
    }

    /// The same with a planted mistake.
    pub fn with(mut self, mistake: Mistake) -> Self {
        self.mistake = mistake;
        self
    }

    /// Sets a budget or a bound by its name. `false` if there is none of this name.
    pub fn set(&mut self, name: &str, value: u8) -> bool {
        let budget = &mut self.budget;
        let place = match name {
            "stock" => &mut self.stock,
            "keys" => &mut self.keys,
            "workers" => &mut self.workers,
            "clicks" => &mut budget.clicks,
            "worker_crashes" => &mut budget.worker_crashes,
            "front_crashes" => &mut budget.front_crashes,
            "stalls" => &mut budget.stalls,
            "lost_answers" => &mut budget.lost_answers,
            "duplicates" => &mut budget.duplicates,
            "purges" => &mut budget.purges,
            "redis_back" => &mut budget.redis_back,
            "redis_empty" => &mut budget.redis_empty,
            "db_back" => &mut budget.db_back,
            "payments" => &mut budget.payments,
            "expiries" => &mut budget.expiries,
            "cancels" => &mut budget.cancels,
            "restocks" => &mut budget.restocks,
            "reads" => &mut budget.reads,
            "refusals" => &mut budget.refusals,
            _ => return false,
        };
        *place = value;
        true
    }

    /// Whether places are followed: only where the database may go back, because nothing else reads them.
    pub fn follows_places(&self) -> bool {
        self.budget.db_back > 0
    }

    /// Whether answers take time: only where somebody may be refused from a cache.
    pub fn has_clock(&self) -> bool {
        self.budget.refusals > 0
    }

    /// Crashes, copies and a purge on the way of two orders to their rows.
    pub fn delivery() -> Self {
        let budget = Budget {
            clicks: 2,
            worker_crashes: 1,
            front_crashes: 1,
            duplicates: 1,
            purges: 1,
            ..Budget::default()
        };
        Self::named("delivery", 2, 1, 2, budget)
    }

    /// Leases that end early, with changes that race: a payment, a deadline and a cancellation.
    pub fn leases() -> Self {
        let changes = Budget { payments: 1, expiries: 1, cancels: 1, ..Budget::default() };
        let budget = Budget { clicks: 2, stalls: 1, duplicates: 1, ..changes };
        Self::named("leases", 1, 1, 2, budget)
    }

    /// Units that go back to the gate and are sold again, while fronts crash and buyers read.
    pub fn returns() -> Self {
        let faults = Budget { front_crashes: 1, lost_answers: 1, ..Budget::default() };
        let budget = Budget { clicks: 2, expiries: 1, cancels: 1, reads: 1, ..faults };
        Self::named("returns", 1, 2, 1, budget)
    }

    /// Redis goes back to an earlier state, and a buyer reads.
    pub fn redis_back() -> Self {
        let budget = Budget { clicks: 2, redis_back: 1, expiries: 1, reads: 1, ..Budget::default() };
        Self::named("redis back", 1, 1, 1, budget)
    }

    /// Redis goes back to an earlier state, and fronts or the rebuild die.
    pub fn redis_back_and_crash() -> Self {
        let budget = Budget { clicks: 2, redis_back: 1, expiries: 1, front_crashes: 1, ..Budget::default() };
        Self::named("redis back, crash", 1, 1, 1, budget)
    }

    /// Redis is emptied.
    pub fn redis_empty() -> Self {
        let budget = Budget { clicks: 2, redis_empty: 1, expiries: 1, reads: 1, ..Budget::default() };
        Self::named("redis empty", 1, 1, 1, budget)
    }

    /// The database goes back to an earlier state, while the unit of one order goes to another.
    pub fn database_back() -> Self {
        let budget = Budget { clicks: 2, db_back: 1, expiries: 1, ..Budget::default() };
        Self::named("database back", 1, 1, 1, budget)
    }

    /// The database goes back, and the order was paid. Fronts or the replay die.
    pub fn payment_back() -> Self {
        let faults = Budget { db_back: 1, front_crashes: 1, ..Budget::default() };
        let budget = Budget { clicks: 1, payments: 1, expiries: 1, reads: 1, ..faults };
        Self::named("payment back", 1, 1, 1, budget)
    }

    /// Refusals from a cache, while orders are accepted and the stock is raised.
    pub fn refusals() -> Self {
        let budget = Budget { clicks: 2, restocks: 1, refusals: 1, ..Budget::default() };
        Self::named("refusals", 1, 1, 1, budget)
    }

    /// Refusals from a cache, while a buyer cancels and the unit comes back.
    pub fn refusals_and_returns() -> Self {
        let budget = Budget { clicks: 2, cancels: 1, refusals: 1, ..Budget::default() };
        Self::named("refusals, returns", 1, 1, 1, budget)
    }

    /// All of them.
    pub fn all() -> Vec<Self> {
        vec![
            Self::delivery(),
            Self::leases(),
            Self::returns(),
            Self::redis_back(),
            Self::redis_back_and_crash(),
            Self::redis_empty(),
            Self::database_back(),
            Self::payment_back(),
            Self::refusals(),
            Self::refusals_and_returns(),
        ]
    }
}
