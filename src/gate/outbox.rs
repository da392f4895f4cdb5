//! The outbox: every order in flight. Admission writes an entry, the broker's confirm marks it, and a committed row
//! ends it (`settle.rs`).

use std::time::Duration;

use super::core::Gate;
use super::error::GateError;
use super::scan::Scan;
use super::wire::{order_id, read_entry, read_order_id};
use crate::domain::{OrderId, SaleId, Ticket, UserId};

/// When the sweep tries to settle a marked order. A gate that is being rebuilt is frozen for about as long.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// Whether `mark.lua` announces the orders.
const SILENT: &str = "0";
const ANNOUNCED: &str = "1";

impl Gate {
    /// The order's ticket while it is in flight; `None` if it is settled or unknown.
    pub async fn ticket(&self, sale: &SaleId, id: OrderId) -> Result<Option<Ticket>, GateError> {
        Ok(self.tickets(sale, &[id]).await?.pop().flatten())
    }

    /// The tickets of several orders, in their order, in one round trip.
    pub async fn tickets(&self, sale: &SaleId, ids: &[OrderId]) -> Result<Vec<Option<Ticket>>, GateError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys(sale).outbox());
        for id in ids {
            command.arg(order_id(*id));
        }
        let entries: Vec<Option<String>> = self.read(sale, command).await?;
        entries
            .iter()
            .map(|entry| entry.as_deref().map(|entry| read_entry(sale, entry)).transpose())
            .collect()
    }

    /// The ids of the orders that the gate holds for a user, settled ones included, oldest first.
    pub async fn orders_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<OrderId>, GateError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys(sale).users()).arg(user.as_str());
        let records: Option<String> = self.read(sale, command).await?;
        records
            .iter()
            .flat_map(|records| records.split(','))
            .map(|record| read_order_id(record.split('|').next().unwrap_or_default()))
            .collect()
    }

    /// Marks orders that RabbitMQ has confirmed. An order without an entry already has a row and is skipped. May be
    /// repeated, like the other marks.
    pub async fn mark_confirmed(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.overtaken_after.as_millis().to_string();
        self.mark(sale, ids, ["broker", &wait, ",outbox,broker,", SILENT]).await
    }

    /// Marks orders that are on the dead-letter queue: in flight, and published again only if that queue loses them.
    pub async fn mark_parked(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.parked_after.as_millis().to_string();
        self.mark(sale, ids, ["parked", &wait, ",outbox,broker,", SILENT]).await
    }

    /// Marks orders that were taken from the dead-letter queue and that RabbitMQ has confirmed again.
    pub async fn mark_replayed(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.overtaken_after.as_millis().to_string();
        self.mark(sale, ids, ["broker", &wait, ",outbox,broker,parked,", SILENT]).await
    }

    /// Marks orders that have a row and are not settled: the gate is frozen, or has forgotten that they were settled.
    /// Readers then get the status from the row.
    pub async fn mark_ended(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = SETTLE_AFTER.as_millis().to_string();
        self.mark(sale, ids, ["ended", &wait, ",outbox,broker,parked,", SILENT]).await
    }

    /// The same for orders of which a change is committed; also announces them, like [`Gate::settle`].
    pub async fn mark_changed(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = SETTLE_AFTER.as_millis().to_string();
        self.mark(sale, ids, ["ended", &wait, ",outbox,broker,parked,", ANNOUNCED]).await
    }

    async fn mark(&self, sale: &SaleId, ids: &[OrderId], how: [&str; 4]) -> Result<(), GateError> {
        let keys = self.keys(sale);
        let keys = [keys.outbox(), keys.due()];
        // In chunks, because a script blocks Redis while it runs.
        for ids in ids.chunks(1_000) {
            let mut args = how.map(str::to_owned).to_vec();
            args.extend(ids.iter().map(|id| order_id(*id)));
            let _marked: i64 = self.link.run(&self.scripts.mark, &keys, &args).await?;
        }
        Ok(())
    }

    /// Takes up to `limit` entries that are due for the sweep, and makes each due again after `spacing`, so that a
    /// sweep that dies loses none. An unreadable entry is logged and skipped.
    pub async fn claim_due(
        &self,
        sale: &SaleId,
        limit: usize,
        spacing: Duration,
    ) -> Result<Vec<Ticket>, GateError> {
        let keys = self.keys(sale);
        let args = [limit.to_string(), spacing.as_millis().to_string()];
        let keys = [keys.outbox(), keys.due()];
        let entries: Vec<String> = self.link.run(&self.scripts.claim_due, &keys, &args).await?;
        // One unreadable entry, of a later version, must not block the others.
        Ok(entries
            .iter()
            .filter_map(|entry| match read_entry(sale, entry) {
                Ok(ticket) => Some(ticket),
                Err(error) => {
                    tracing::error!(%sale, %error, "outbox entry cannot be read; the sweep skips it");
                    None
                }
            })
            .collect())
    }

    /// Every order of a sale that is in flight, ordered by id. Not a snapshot: entries that come or go during the
    /// call may be in it.
    pub async fn in_flight(&self, sale: &SaleId) -> Result<Vec<Ticket>, GateError> {
        let mut tickets = Vec::new();
        let mut scan = Scan::of(self.keys(sale).outbox());
        while let Some(page) = scan.next(self).await? {
            for (_, entry) in page {
                tickets.push(read_entry(sale, &entry)?);
            }
        }
        // HSCAN may return an entry twice.
        tickets.sort_by_key(|ticket| ticket.order.id);
        tickets.dedup_by_key(|ticket| ticket.order.id);
        Ok(tickets)
    }
}
