//! Is a sale ready for its buyers? An operator asks before the rush, while there is time to fix it.

use std::time::Duration;

use serde::Serialize;

use super::error::ControlError;
use super::sales::Control;
use crate::domain::{Millis, SaleId, SaleState};
use crate::gate::GateSale;
use crate::store::SaleRow;

/// By how much the clocks of Redis, the database and this host may differ.
pub const CLOCK_TOLERANCE: Duration = Duration::from_millis(250);

/// The result of one check.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Check {
    /// What was checked: `database`, `redis`, `script`, `clocks`, `sale`, `terms` or `stock`.
    pub what: &'static str,
    /// Whether it passed.
    pub good: bool,
    /// What was found and, if the check failed, what to do.
    pub said: String,
}

impl Check {
    fn good(what: &'static str, said: impl Into<String>) -> Self {
        Self { what, good: true, said: said.into() }
    }

    fn wrong(what: &'static str, said: impl Into<String>) -> Self {
        Self { what, good: false, said: said.into() }
    }
}

impl Control {
    /// Checks everything that the sale needs, and changes nothing. It fails only if the sale has no row or the row
    /// cannot be read; every other problem is a [`Check`] that did not pass.
    pub async fn check(&self, id: &SaleId) -> Result<Vec<Check>, ControlError> {
        let mut checks = Vec::new();
        match self.store.check().await {
            Ok(()) => checks.push(Check::good("database", "answers, and has its tables")),
            Err(error) => checks.push(Check::wrong("database", format!("{error}; try: doorbuster migrate"))),
        }
        let promises = self.store.wrong_settings().await.unwrap_or_default();
        checks.extend(promises.into_iter().map(|wrong| Check::wrong("database", wrong)));
        let row = self.row(id).await?;
        match self.gate.describe(id).await {
            Ok(gate) => {
                checks.push(Check::good("redis", "answers"));
                checks.extend(gate_checks(&row, gate.as_ref()));
            }
            Err(error) => checks.push(Check::wrong("redis", error.to_string())),
        }
        match self.gate.wrong_settings().await {
            Ok(Some(wrong)) => checks.extend(wrong.into_iter().map(|wrong| Check::wrong("redis", wrong))),
            Ok(None) => checks.push(Check::good("redis", "hides its settings, so they were not checked")),
            // It is unavailable; the check above has reported that.
            Err(_) => {}
        }
        match self.gate.is_compared().await {
            Ok(true) => checks.push(Check::good("script", "loaded, and the books were compared first")),
            Ok(false) => checks.push(Check::good(
                "script",
                "not loaded yet: a front loads it with the first order, after it has compared the books",
            )),
            Err(_) => {}
        }
        checks.push(self.clocks().await);
        Ok(checks)
    }

    async fn clocks(&self) -> Check {
        let before = Millis::now();
        let (redis, database) = (self.gate.clock().await, self.store.read_clock().await);
        let after = Millis::now();
        let (Ok(redis), Ok(database)) = (redis, database) else {
            return Check::wrong("clocks", "Redis or the database did not answer");
        };
        // Each clock was read at some moment between `before` and `after`.
        let off = |clock: Millis| (before.0 - clock.0).max(clock.0 - after.0).max(0);
        let said = format!("Redis is off by {} ms, and the database by {} ms", off(redis), off(database));
        let most = off(redis).max(off(database));
        if u128::try_from(most).is_ok_and(|most| most <= CLOCK_TOLERANCE.as_millis()) {
            return Check::good("clocks", said);
        }
        Check::wrong("clocks", format!("{said}; run a time service on each host"))
    }
}

fn gate_checks(row: &SaleRow, gate: Option<&GateSale>) -> Vec<Check> {
    let Some(gate) = gate else {
        let said = match row.state {
            SaleState::Draft => {
                "it is a draft, and buyers get 404; open it before its window begins: doorbuster sale open"
            }
            state if state.has_ended() => "it is over",
            _ => "it was opened, and Redis no longer has it: Redis lost data",
        };
        return vec![Check::wrong("sale", said)];
    };
    let mut checks = Vec::new();
    let left = gate.window.opens_at.0 - gate.now.0;
    let over = gate.window.closes_at.is_some_and(|closes_at| closes_at <= gate.now);
    checks.push(match gate.state {
        SaleState::Open if over => {
            Check::wrong("sale", "its window has ended: change closes_at, or close it")
        }
        SaleState::Open if left > 0 => {
            Check::good("sale", format!("opens by itself in {} s, at {}", left / 1000, gate.window.opens_at))
        }
        SaleState::Open => Check::good("sale", "it is selling"),
        state => Check::wrong("sale", format!("it is {state}")),
    });
    if gate.terms_version == row.terms_version {
        checks.push(Check::good("terms", "the same in Redis and in the database"));
    } else {
        let said = "a change has not reached Redis yet; maintenance brings it there";
        checks.push(Check::wrong("terms", said));
    }
    for item in &row.items {
        let held = gate.items.iter().find(|held| held.sku == item.sku);
        checks.push(match held {
            None => Check::wrong("stock", format!("{}: Redis does not have it", item.sku)),
            Some(held) if held.version != item.version || held.stock != item.stock => Check::wrong(
                "stock",
                format!("{}: {} in Redis, {} in the database", item.sku, held.stock, item.stock),
            ),
            Some(held) if held.left <= 0 => Check::wrong("stock", format!("{}: none is left", item.sku)),
            Some(held) => Check::good("stock", format!("{}: {} of {} left", item.sku, held.left, held.stock)),
        });
    }
    checks
}
