//! Compares the sums of gate and database for every sale at a fixed interval, raises alarms through metrics, and pauses
//! a sale whose books do not balance if the configuration says so. A separate task, because one comparison may take
//! long.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::leader::{LONGEST, alone, work_alone};
use crate::audit::{Audit, AuditError, ItemBooks, audit_knowing};
use crate::control::Control;
use crate::domain::{ActRequest, SaleId, SaleState};
use crate::gate::Gate;
use crate::lease::{LeaseError, Leases};
use crate::store::{KnownTotals, Store};
use crate::telemetry::{Label, SaleGauges};

const SCOPE: &str = "_audit";

/// The rows of a sale that has not changed are added up again after this time, in case somebody changed them by hand.
const ADD_UP_AGAIN: Duration = Duration::from_secs(15 * 60);

/// Checks the books of every sale, on one front at a time.
pub struct BooksCheck {
    /// One side of the books.
    pub gate: Gate,
    /// The other side.
    pub store: Store,
    /// Lets only one front look at a time.
    pub leases: Leases,
    /// Pauses a sale.
    pub control: Control,
    /// Show what was found.
    pub gauges: SaleGauges,
    /// Time between two looks.
    pub every: Duration,
    /// Whether to pause a sale whose books do not balance.
    pub pause_sale: bool,
}

impl BooksCheck {
    /// Runs until `stop`. Errors are retried at the next look.
    pub async fn run(self, stop: CancellationToken) {
        let mut before = Earlier::default();
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            // Held for most of the interval, so that the books are checked once although every front tries.
            let options = work_alone().min_hold(self.every.mul_f64(0.8)).max_hold(LONGEST.max(self.every));
            let look = alone(&self.leases, SCOPE, options, self.look(&mut before));
            match stop.run_until_cancelled(look).await {
                Some(Ok(true)) | None => {}
                // Another front looks and reports.
                Some(Ok(false)) => Found::default().report(&self.gauges),
                // Redis does not say whether another front looks.
                Some(Err(MaintenanceError::Lease(LeaseError::Redis(error)))) => {
                    tracing::debug!(%error, "the books are not compared");
                    Found::report_unread(1);
                }
                Some(Err(MaintenanceError::Lease(error))) => {
                    tracing::warn!(%error, "comparing the books is left to another front");
                }
                Some(Err(error)) => tracing::warn!(%error, "the books could not be compared"),
            }
        }
    }

    /// The gauges say what was found. After an error only that sales were not looked at: the other gauges stay.
    async fn look(&self, before: &mut Earlier) -> Result<(), MaintenanceError> {
        let mut found = Found::default();
        let looked = self.look_at_all(&mut found, before).await;
        match &looked {
            Ok(()) => found.report(&self.gauges),
            Err(_) => Found::report_unread(found.unread + 1),
        }
        looked
    }

    async fn look_at_all(&self, found: &mut Found, before: &mut Earlier) -> Result<(), MaintenanceError> {
        // A database that is behind has an alert of its own; its side of the books says nothing.
        self.store.ensure_current().await?;
        // From the rows: the gate does not list a sale that Redis has lost.
        let (rows, unreadable) = self.store.readable_sales().await?;
        found.unread += u32::try_from(unreadable).unwrap_or(u32::MAX);
        for row in rows {
            if matches!(row.state, SaleState::Draft | SaleState::Archived) {
                continue;
            }
            let (sale, number) = (row.sale.id, row.number.max(row.witnessed));
            // Redis may have gone back to before a number that only the row has kept.
            if let Err(error) = self.gate.freeze_if_behind(&sale, number).await {
                tracing::warn!(%sale, %error, "the gate could not be compared with the number in its row");
            }
            // An error in one sale must not keep the others from being checked.
            let books = match self.books(&sale, before).await {
                Ok(books) => books,
                Err(error) => {
                    tracing::warn!(%sale, %error, "its books could not be read");
                    found.unread += 1;
                    continue;
                }
            };
            // A closed one too: payments and ends of its orders go on, and the position in the order log waits for it.
            found.lost += u32::from(books.needs_rebuild());
            found.add(&books);
            match judge(&books, &mut before.missing) {
                Judgement::Balances => self.note(&books, false).await,
                Judgement::NotNow => found.moving += 1,
                Judgement::Broken => {
                    found.broken += 1;
                    self.note(&books, true).await;
                    Box::pin(self.alarm(&books)).await;
                }
            }
        }
        metrics::counter!("doorbuster_audit_runs_total").increment(1);
        Ok(())
    }

    async fn books(&self, sale: &SaleId, before: &mut Earlier) -> Result<Audit, AuditError> {
        before.totals.retain(|_, (added_up, _)| added_up.elapsed() < ADD_UP_AGAIN);
        let earlier = before.totals.remove(sale);
        let known = earlier.as_ref().map(|(_, known)| known);
        let (books, totals) = audit_knowing(&self.gate, &self.store, sale, known, &|_, _| {}).await?;
        let is_same = known.is_some_and(|known| totals.is_as_old_as(known));
        let added_up = earlier.filter(|_| is_same).map_or_else(Instant::now, |(added_up, _)| added_up);
        // Somebody may be repairing the rows by hand; the next look shows it.
        if !books.rows_are_wrong() {
            before.totals.insert(sale.clone(), (added_up, totals));
        }
        Ok(books)
    }

    /// For webhooks.
    async fn note(&self, books: &Audit, are_broken: bool) {
        let sale = &books.sale_id;
        if let Err(error) = self.store.note_broken_books(sale, are_broken).await {
            tracing::debug!(%sale, %error, "webhooks do not know yet whether its books are broken");
        }
    }

    async fn alarm(&self, books: &Audit) {
        let sale = &books.sale_id;
        tracing::error!(%sale, ?books, "the books of this sale do not balance");
        if !self.pause_sale {
            return;
        }
        let open = self.gate.describe(sale).await;
        if !open.is_ok_and(|gate| gate.is_some_and(|gate| gate.state == SaleState::Open)) {
            return;
        }
        let request = ActRequest::by("audit").because(Some("its books do not balance".into()));
        match self.control.pause(sale, None, &request).await {
            Ok(_) => metrics::counter!("doorbuster_audit_sales_paused_total").increment(1),
            Err(error) => tracing::warn!(%sale, %error, "it could not be paused"),
        }
    }
}

/// What earlier looks have found.
#[derive(Default)]
struct Earlier {
    /// For sales that did not balance in the previous look: how many units of each item were missing.
    missing: HashMap<SaleId, Vec<i64>>,
    /// The sums over the rows of sales at rest, and when they were added up.
    totals: HashMap<SaleId, (Instant, KnownTotals)>,
}

/// How many sales a look has found in which state, and what is wrong in each.
#[derive(Default)]
struct Found {
    broken: u32,
    lost: u32,
    /// Sold or returned units while they were read, so that their sums are not exact.
    moving: u32,
    /// Could not be read.
    unread: u32,
    missing: BTreeMap<Label, f64>,
    oversold: BTreeMap<Label, f64>,
    over_limit: BTreeMap<Label, f64>,
}

impl Found {
    fn add(&mut self, books: &Audit) {
        let label = Label::of(&books.sale_id);
        let units = |of: fn(&ItemBooks) -> i64| books.items.iter().map(of).sum::<i64>() as f64;
        self.missing.insert(label.clone(), units(ItemBooks::missing));
        self.oversold.insert(label.clone(), units(ItemBooks::oversold));
        self.over_limit.insert(label, books.users_over_limit.len() as f64);
    }

    fn report(self, gauges: &SaleGauges) {
        metrics::gauge!("doorbuster_audit_sales_out_of_balance").set(f64::from(self.broken));
        metrics::gauge!("doorbuster_audit_sales_to_rebuild").set(f64::from(self.lost));
        metrics::gauge!("doorbuster_audit_sales_unjudged", "reason" => "moving").set(f64::from(self.moving));
        Self::report_unread(self.unread);
        gauges.show("doorbuster_audit_missing_units", self.missing);
        gauges.show("doorbuster_audit_oversold_units", self.oversold);
        gauges.show("doorbuster_audit_users_over_limit", self.over_limit);
    }

    fn report_unread(sales: u32) {
        metrics::gauge!("doorbuster_audit_sales_unjudged", "reason" => "unread").set(f64::from(sales));
    }
}

/// What the books of a sale say.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Balances,
    Broken,
    /// The rows break no promise, and the sums cannot be judged in this look.
    NotNow,
}

/// The sums are exact only if the gate took no number while they were read. Missing units count only if the same units
/// were missing in the previous look, because some are always missing between the steps of a change. What the rows alone
/// say is judged in every look.
fn judge(books: &Audit, before: &mut HashMap<SaleId, Vec<i64>>) -> Judgement {
    let missing: Vec<i64> = books.items.iter().map(ItemBooks::missing).collect();
    if books.rows_are_wrong() {
        return Judgement::Broken;
    }
    if books.moved {
        return Judgement::NotNow;
    }
    // A gate that lost writes is counted separately.
    if books.balances() || books.needs_rebuild() {
        before.remove(&books.sale_id);
        return Judgement::Balances;
    }
    match before.insert(books.sale_id.clone(), missing.clone()) == Some(missing) {
        true => Judgement::Broken,
        false => Judgement::NotNow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Sku, UserId};

    fn books(live: i64, left: i64, moved: bool) -> Audit {
        let sku = Sku::parse("pair").unwrap();
        let item = ItemBooks { sku, stock: 10, left, in_flight: 0, returning: 0, live, sold: live };
        Audit {
            sale_id: SaleId::parse("shoes").unwrap(),
            items: vec![item],
            gate_lost: false,
            frozen: false,
            in_flight: 0,
            unsettled: 0,
            unreturned: 0,
            database_behind: false,
            moved,
            number: None,
            live_orders: live as u64,
            unpaid_orders: 0,
            failed_orders: 0,
            users_over_limit: Vec::new(),
        }
    }

    #[test]
    fn what_the_rows_say_is_judged_while_the_sale_sells() {
        let mut before = HashMap::new();
        assert_eq!(judge(&books(4, 6, false), &mut before), Judgement::Balances);
        // The sums of a sale that sells are off, and say nothing.
        assert_eq!(judge(&books(4, 5, true), &mut before), Judgement::NotNow);
        assert_eq!(judge(&books(4, 5, true), &mut before), Judgement::NotNow);
        // But eleven of ten are too many, whatever moves.
        assert_eq!(judge(&books(11, 0, true), &mut before), Judgement::Broken);
        let over_limit = Audit { users_over_limit: vec![UserId::parse("ann").unwrap()], ..books(4, 6, true) };
        assert_eq!(judge(&over_limit, &mut before), Judgement::Broken);
        let mut miscounted = books(4, 6, true);
        miscounted.items[0].sold = 5;
        assert_eq!(judge(&miscounted, &mut before), Judgement::Broken);
    }

    #[test]
    fn missing_units_count_when_they_are_missing_twice() {
        let mut before = HashMap::new();
        assert_eq!(judge(&books(4, 5, false), &mut before), Judgement::NotNow);
        assert_eq!(judge(&books(4, 4, false), &mut before), Judgement::NotNow);
        assert_eq!(judge(&books(4, 4, false), &mut before), Judgement::Broken);
    }
}
