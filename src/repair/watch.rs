//! The books of every sale, looked at though nobody asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::Rebuild;
use crate::audit::{Audit, ItemBooks, audit};
use crate::control::Control;
use crate::domain::{Asked, SaleId, SaleState};
use crate::gate::Gate;
use crate::store::Store;

/// Cheap to clone.
#[derive(Clone)]
pub struct Watch {
    pub gate: Gate,
    pub store: Store,
    pub control: Control,
    /// Pause a sale whose books do not balance.
    pub pauses: bool,
    /// What was missing in the look before, of sales in which something was.
    pub before: Arc<Mutex<HashMap<SaleId, i64>>>,
}

impl Watch {
    /// Compares the sums of each sale that the gate knows. Says how many do not balance.
    pub async fn look(&self) -> Result<usize, String> {
        let mut broken = 0;
        for sale in self.gate.sales().await.map_err(|error| error.to_string())? {
            // Trouble with one sale is not the others'.
            let books = match audit(&self.gate, &self.store, &sale).await {
                Ok(books) => books,
                Err(error) => {
                    tracing::debug!(%sale, %error, "its books could not be compared");
                    continue;
                }
            };
            if self.is_broken(&books) {
                broken += 1;
                self.tell(&books).await;
            }
        }
        metrics::counter!("audit_runs_total").increment(1);
        metrics::gauge!("audit_sales_out_of_balance").set(broken as f64);
        Ok(broken)
    }

    /// Orders in a hurry make a difference of a moment: what is missing counts when it was missing in the
    /// look before, too.
    fn is_broken(&self, books: &Audit) -> bool {
        let missing: i64 = books.items.iter().map(ItemBooks::missing).sum();
        let oversold: i64 = books.items.iter().map(ItemBooks::oversold).sum();
        let sale = books.sale_id.to_string();
        metrics::gauge!("audit_missing_units", "sale" => sale.clone()).set(missing as f64);
        metrics::gauge!("audit_oversold_units", "sale" => sale.clone()).set(oversold as f64);
        metrics::gauge!("audit_users_over_limit", "sale" => sale).set(books.users_over_limit.len() as f64);
        let mut before = self.before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if books.balances() || books.needs_rebuild() {
            // A gate that lost writes is a matter of its own.
            before.remove(&books.sale_id);
            return false;
        }
        if oversold > 0 || !books.users_over_limit.is_empty() {
            return true;
        }
        let same = before.insert(books.sale_id.clone(), missing) == Some(missing);
        same && !books.moved
    }

    async fn tell(&self, books: &Audit) {
        let sale = &books.sale_id;
        tracing::error!(%sale, ?books, "the books of this sale do not balance");
        if !self.pauses {
            return;
        }
        let open = self.gate.describe(sale).await;
        if !open.is_ok_and(|gate| gate.is_some_and(|gate| gate.state == SaleState::Open)) {
            return;
        }
        let asked = Asked::by("audit").because(Some("its books do not balance".into()));
        match self.control.pause(sale, None, &asked).await {
            Ok(_) => metrics::counter!("audit_sales_paused_total").increment(1),
            Err(error) => tracing::warn!(%sale, %error, "it could not be paused"),
        }
    }
}

impl Rebuild {
    /// Rebuilds every sale whose gate is frozen or lost. Says how many.
    pub async fn rebuild_what_is_frozen(&self) -> Result<usize, String> {
        let mut rebuilt = 0;
        for row in self.store.sales().await.map_err(|error| error.to_string())? {
            if row.state == SaleState::Draft || row.state.has_ended() {
                continue;
            }
            let id = row.sale.id;
            let state = match self.gate.describe(&id).await {
                Ok(gate) => gate.map(|gate| gate.state),
                // Redis is away: there is nothing to rebuild it in.
                Err(_) => continue,
            };
            if !matches!(state, None | Some(SaleState::Frozen)) {
                continue;
            }
            match self.run(&id, &Asked::by("schedule")).await {
                Ok(_) => rebuilt += 1,
                Err(error) => tracing::error!(sale = %id, %error, "a frozen sale could not be rebuilt yet"),
            }
        }
        Ok(rebuilt)
    }
}
