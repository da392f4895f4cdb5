//! What is looked at though nobody asks: the books of every sale, gates that have to be rebuilt, orders
//! that a rebuilt gate does not know. Tasks of their own, because each may take long.

use std::collections::HashMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::audit::{Audit, ItemBooks, audit};
use crate::control::Control;
use crate::domain::{ActRequest, SaleId, SaleState};
use crate::gate::Gate;
use crate::lease::{LeaseOptions, Leases};
use crate::store::Store;

/// No sale can have these ids.
const BOOKS: &str = "_audit";

/// For how long another front must wait when the one that looks dies.
const LEASE: Duration = Duration::from_secs(15);

/// How long a look may take.
const AT_MOST: Duration = Duration::from_secs(3_600);

pub struct BooksCheck {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
    pub control: Control,
    pub every: Duration,
    /// Pause a sale whose books do not balance.
    pub pause_sale: bool,
}

impl BooksCheck {
    /// Compares the sums of every sale once in each interval, by one front of all. Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // What was missing of each item in the look before, of sales in which something was.
        let mut before: HashMap<SaleId, Vec<i64>> = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            // Held for most of the interval: so it is looked once, though every front would.
            let options = LeaseOptions::lasting(LEASE)
                .min_hold(self.every.mul_f64(0.8))
                .max_hold(AT_MOST.max(self.every));
            let Ok(Some(guard)) = self.leases.take(BOOKS, ["leader"], options).await.map(|taken| taken.guard)
            else {
                tell(0, 0);
                continue;
            };
            let looked = guard.until_lost(self.look(&mut before));
            match stop.run_until_cancelled(looked).await {
                Some(Ok(Ok(()))) | None => {}
                Some(Ok(Err(error))) => tracing::warn!(error, "the books could not be compared"),
                Some(Err(error)) => tracing::warn!(%error, "comparing the books is left to another front"),
            }
            let _ = guard.release().await;
        }
    }

    async fn look(&self, before: &mut HashMap<SaleId, Vec<i64>>) -> Result<(), String> {
        let (mut broken, mut lost) = (0, 0);
        // By the rows: a sale that Redis has lost is not among those that it knows.
        for row in self.store.sales().await.map_err(|error| error.to_string())? {
            if matches!(row.state, SaleState::Draft | SaleState::Archived) {
                continue;
            }
            let sale = row.sale.id;
            // Trouble with one sale is not the others'.
            let books = match audit(&self.gate, &self.store, &sale).await {
                Ok(books) => books,
                Err(error) => {
                    tracing::debug!(%sale, %error, "its books could not be compared");
                    continue;
                }
            };
            lost += u32::from(books.needs_rebuild() && !row.state.has_ended());
            if is_broken(&books, before) {
                broken += 1;
                self.act_upon(&books).await;
            }
        }
        metrics::counter!("audit_runs_total").increment(1);
        tell(broken, lost);
        Ok(())
    }

    async fn act_upon(&self, books: &Audit) {
        let sale = &books.sale_id;
        tracing::error!(%sale, ?books, "the books of this sale do not balance");
        if !self.pause_sale {
            return;
        }
        let open = self.gate.describe(sale).await;
        if !open.is_ok_and(|gate| gate.is_some_and(|gate| gate.state == SaleState::Open)) {
            return;
        }
        let asked = ActRequest::by("audit").because(Some("its books do not balance".into()));
        match self.control.pause(sale, None, &asked).await {
            Ok(_) => metrics::counter!("audit_sales_paused_total").increment(1),
            Err(error) => tracing::warn!(%sale, %error, "it could not be paused"),
        }
    }
}

/// Sums are exact where the gate took no number meanwhile. What is missing counts when the same was missing
/// in the look before: between the steps of a change, something always is.
fn is_broken(books: &Audit, before: &mut HashMap<SaleId, Vec<i64>>) -> bool {
    let missing: Vec<i64> = books.items.iter().map(ItemBooks::missing).collect();
    let oversold: i64 = books.items.iter().map(ItemBooks::oversold).sum();
    let sale = books.sale_id.to_string();
    metrics::gauge!("audit_missing_units", "sale" => sale.clone()).set(missing.iter().sum::<i64>() as f64);
    metrics::gauge!("audit_oversold_units", "sale" => sale.clone()).set(oversold as f64);
    metrics::gauge!("audit_users_over_limit", "sale" => sale).set(books.users_over_limit.len() as f64);
    if books.moved {
        return false;
    }
    // A gate that lost writes is a matter of its own.
    if books.balances() || books.needs_rebuild() {
        before.remove(&books.sale_id);
        return false;
    }
    let same = before.insert(books.sale_id.clone(), missing.clone()) == Some(missing);
    same || oversold > 0 || !books.users_over_limit.is_empty()
}

fn tell(broken: u32, lost: u32) {
    metrics::gauge!("audit_sales_out_of_balance").set(f64::from(broken));
    metrics::gauge!("audit_sales_to_rebuild").set(f64::from(lost));
}
