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
}

impl Config {
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

    /// Crashes, lost answers, copies and a purge on the way of an order to its row.
    pub fn delivery() -> Self {
        let budget = Budget {
            clicks: 2,
            worker_crashes: 1,
            front_crashes: 1,
            lost_answers: 1,
            duplicates: 1,
            purges: 1,
            ..Budget::default()
        };
        Self { name: "delivery", stock: 1, keys: 1, workers: 2, budget, mistake: Mistake::None }
    }

    /// Leases that end early, with changes that race: a payment, a deadline and a cancellation.
    pub fn leases() -> Self {
        let budget = Budget {
            clicks: 2,
            worker_crashes: 1,
            stalls: 1,
            duplicates: 1,
            payments: 1,
            expiries: 1,
            cancels: 1,
            ..Budget::default()
        };
        Self { name: "leases", stock: 1, keys: 2, workers: 2, budget, mistake: Mistake::None }
    }

    /// Units that go back to the gate and are sold again, while fronts and workers crash.
    pub fn returns() -> Self {
        let budget = Budget {
            clicks: 3,
            worker_crashes: 1,
            front_crashes: 1,
            lost_answers: 1,
            expiries: 1,
            cancels: 1,
            reads: 2,
            ..Budget::default()
        };
        Self { name: "returns", stock: 1, keys: 2, workers: 1, budget, mistake: Mistake::None }
    }

    /// Redis goes back to an earlier state.
    pub fn redis_back() -> Self {
        let budget = Budget {
            clicks: 2,
            worker_crashes: 1,
            front_crashes: 1,
            redis_back: 1,
            expiries: 1,
            reads: 2,
            ..Budget::default()
        };
        Self { name: "redis back", stock: 1, keys: 2, workers: 1, budget, mistake: Mistake::None }
    }

    /// Redis is emptied.
    pub fn redis_empty() -> Self {
        let budget = Budget {
            clicks: 3,
            worker_crashes: 1,
            front_crashes: 1,
            redis_empty: 1,
            expiries: 1,
            reads: 1,
            ..Budget::default()
        };
        Self { name: "redis empty", stock: 2, keys: 2, workers: 1, budget, mistake: Mistake::None }
    }

    /// The database goes back to an earlier state.
    pub fn database_back() -> Self {
        let budget = Budget {
            clicks: 2,
            front_crashes: 1,
            db_back: 1,
            payments: 1,
            expiries: 1,
            reads: 1,
            ..Budget::default()
        };
        Self { name: "database back", stock: 1, keys: 2, workers: 1, budget, mistake: Mistake::None }
    }

    /// Refusals from a cache, while orders are accepted, units come back and the stock is raised.
    pub fn refusals() -> Self {
        let budget =
            Budget { clicks: 2, cancels: 1, restocks: 1, refusals: 1, ..Budget::default() };
        Self { name: "refusals", stock: 1, keys: 1, workers: 1, budget, mistake: Mistake::None }
    }

    /// All of them.
    pub fn all() -> Vec<Self> {
        vec![
            Self::delivery(),
            Self::leases(),
            Self::returns(),
            Self::redis_back(),
            Self::redis_empty(),
            Self::database_back(),
            Self::refusals(),
        ]
    }
}
