//! Ends that the log does not have: changes are written to the log just after they are committed, so a database can lose
//! an end that never got there. The gate knows them, if it has taken the units back: it does so only after the end was
//! committed. Its buyer may have seen the end, and the unit may be sold again.

use std::collections::BTreeMap;

use super::error::ReplayError;
use super::survey::{Pass, Survey};
use super::work::Work;
use super::write::confirmed;
use crate::domain::{Entry, Millis, Order, OrderId, OrderStatus, SaleId, Step, UserId};
use crate::gate::{Gate, GateError};

/// Who ends the orders, in their history.
const BY: &str = "replay";
const REASON: &str = "the gate had its units back";

impl Work<'_> {
    /// Writes the orders that the log has as live and the gate as ended. They are written before live ones, which may
    /// have got their units.
    pub(super) async fn write_ends_in_gate(
        &mut self,
        survey: &mut Survey,
        taken: &mut u64,
        total: u64,
    ) -> Result<(), ReplayError> {
        if !self.report.was_behind || !survey.passes.contains(&Pass::Live) {
            return Ok(());
        }
        let (lanes, filter) = (self.lanes(), self.request.filter.clone());
        let Some(mut reader) = self.open().await? else { return Ok(()) };
        let (mut live, mut ended, mut read) = (Vec::new(), Vec::new(), 0);
        while let Some(record) = self.next_of(&mut reader).await? {
            read += record.entries.len() as u64;
            (self.progress.read)("entries compared with Redis", read);
            let entries = record.entries.into_iter().flatten();
            live.extend(entries.filter(|entry| {
                Pass::of(entry) == Some(Pass::Live) && filter.passes_entry(entry) && survey.is_last(entry)
            }));
            if live.len() >= lanes.at_once() {
                self.keep_ended(&mut live, survey, &mut ended).await?;
            }
            if ended.len() >= lanes.at_once() {
                *taken += ended.len() as u64;
                self.write(&mut ended, lanes, total).await?;
            }
            self.check_in().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reader.close().await;
        if !self.stop.is_cancelled() {
            self.keep_ended(&mut live, survey, &mut ended).await?;
            *taken += ended.len() as u64;
            self.write(&mut ended, lanes, total).await?;
        }
        Ok(())
    }

    /// Moves the ends of those of the live orders that the gate has ended.
    async fn keep_ended(
        &self,
        live: &mut Vec<Entry>,
        survey: &mut Survey,
        ended: &mut Vec<Entry>,
    ) -> Result<(), ReplayError> {
        let known = self.retrying(async || Ok(ended_in_gate(&self.replay.gate, live).await?)).await?;
        let Some(mut known) = known else { return Ok(()) };
        // The database may have the end already, although the log read from its position on does not.
        let store = &self.replay.store;
        let Some(rows) = self.retrying(async || Ok(store.orders_by_id(&known).await?)).await? else {
            return Ok(());
        };
        known.retain(|id| !rows.iter().any(|row| row.order.id == *id && !row.status.is_live()));
        for entry in live.drain(..) {
            let has_ended = entry.order().is_some_and(|order| known.contains(&order.id));
            if has_ended && survey.decides(&entry) {
                ended.extend(end_of(entry));
            }
        }
        Ok(())
    }
}

/// Those of these orders that the gate remembers as ended.
async fn ended_in_gate(gate: &Gate, entries: &[Entry]) -> Result<Vec<OrderId>, GateError> {
    let mut sales: BTreeMap<&SaleId, Vec<&Order>> = BTreeMap::new();
    for order in entries.iter().filter_map(Entry::order) {
        sales.entry(&order.sale).or_default().push(order);
    }
    let mut ended = Vec::new();
    for (sale, orders) in sales {
        let users: Vec<&UserId> = orders.iter().map(|order| &order.user).collect();
        let held = gate.holdings_of(sale, &users).await?;
        for (order, held) in orders.iter().zip(held) {
            ended
                .extend(held.iter().any(|held| held.id == order.id && held.quantity < 0).then_some(order.id));
        }
    }
    Ok(ended)
}

/// The end of an order whose last known state is live. A paid order can only have been refunded; how another one ended
/// is not known.
fn end_of(entry: Entry) -> Option<Entry> {
    let mut ended = match entry {
        Entry::Order(entry) => *entry,
        Entry::Accepted(order) => confirmed(order),
        Entry::Sale(_) | Entry::Act(_) | Entry::Payment(_) => return None,
    };
    let to = match ended.status {
        OrderStatus::Paid => OrderStatus::Refunded,
        _ => OrderStatus::Cancelled,
    };
    ended.version += 1;
    ended.history.push(Step {
        version: ended.version,
        from: ended.status,
        to,
        by: BY.into(),
        reason: Some(REASON.into()),
        at: Millis::now(),
    });
    (ended.status, ended.pay_by, ended.updated_at) = (to, None, Millis::now());
    Some(Entry::Order(Box::new(ended)))
}
