//! The outbox: every order in flight. Written by admission, marked by the broker's confirm, ended
//! by a committed row.

use std::time::Duration;

use super::wire::{acted, order_id, read_entry, read_order_id, record};
use super::{Gate, GateError};
use crate::domain::{Number, Order, OrderId, SaleId, Ticket, UserId};

/// What the database has committed about an order, as the gate must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The row is there and the user keeps the order.
    Kept,
    /// Refused, and the unit never existed: the user is freed, nothing is given back.
    Dropped,
    /// Refused as one too many for this user. The winner, if there is one, takes its place; the
    /// units of the loser return, less those of a winner that the gate did not know.
    Replaced(Option<Box<Order>>),
    /// Ended by an operator before it was confirmed: the user is freed, and the units return.
    Returned,
    /// Its row has reached its end: the units return, and the order is remembered as ended.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub id: OrderId,
    pub user: UserId,
    pub outcome: Outcome,
}

impl Gate {
    /// The order's ticket while it is in flight; `None` once it is settled, or never was.
    pub async fn ticket(&self, sale: &SaleId, id: OrderId) -> Result<Option<Ticket>, GateError> {
        Ok(self.tickets(sale, &[id]).await?.pop().flatten())
    }

    /// The same for many orders in one round trip, in their order.
    pub async fn tickets(&self, sale: &SaleId, ids: &[OrderId]) -> Result<Vec<Option<Ticket>>, GateError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys(sale).outbox());
        for id in ids {
            command.arg(order_id(*id));
        }
        let entries: Vec<Option<String>> = self.link.query(&command).await?;
        entries
            .iter()
            .map(|entry| entry.as_deref().map(|entry| read_entry(sale, entry)).transpose())
            .collect()
    }

    /// The ids of the orders that the gate holds for a user, settled ones included, oldest first.
    pub async fn orders_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<OrderId>, GateError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys(sale).users()).arg(user.as_str());
        let records: Option<String> = self.link.query(&command).await?;
        records
            .iter()
            .flat_map(|records| records.split(','))
            .map(|record| read_order_id(record.split('|').next().unwrap_or_default()))
            .collect()
    }

    /// Says that RabbitMQ holds these orders. Entries that are gone have a row already.
    pub async fn mark_confirmed(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.overtaken_after.as_millis().to_string();
        self.mark(sale, ids, ["broker", &wait, ",outbox,broker,"]).await
    }

    /// Says that these orders lie on the dead-letter queue: in flight, and published again only if
    /// that queue loses them.
    pub async fn mark_parked(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.parked_after.as_millis().to_string();
        self.mark(sale, ids, ["parked", &wait, ",outbox,broker,"]).await
    }

    /// Says that these orders were taken from the dead-letter queue and given to RabbitMQ again.
    pub async fn mark_replayed(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.overtaken_after.as_millis().to_string();
        self.mark(sale, ids, ["broker", &wait, ",outbox,broker,parked,"]).await
    }

    /// Says that these orders, in flight or not, have ended in their rows. For a gate that cannot take
    /// their units now: whoever asks is sent to the row.
    pub async fn mark_ended(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let wait = self.settings.parked_after.as_millis().to_string();
        self.mark(sale, ids, ["ended", &wait, ",outbox,broker,parked,"]).await
    }

    async fn mark(&self, sale: &SaleId, ids: &[OrderId], how: [&str; 3]) -> Result<(), GateError> {
        let keys = self.keys(sale);
        let keys = [keys.outbox(), keys.due()];
        // Redis does nothing else during a call.
        for ids in ids.chunks(1_000) {
            let mut args = how.map(str::to_owned).to_vec();
            args.extend(ids.iter().map(|id| order_id(*id)));
            let _marked: i64 = self.link.run(&self.scripts.mark, &keys, &args).await?;
        }
        Ok(())
    }

    /// Ends the flight of orders whose outcome is committed. Call it after COMMIT, never before.
    /// May be repeated; the answer is the gate's number afterwards. [`GateError::Frozen`]: left to the
    /// sweep.
    pub async fn settle(&self, sale: &SaleId, settlements: &[Settlement]) -> Result<Number, GateError> {
        let (mut kept, mut others) = (Vec::with_capacity(settlements.len()), Vec::new());
        for settlement in settlements {
            let id = order_id(settlement.id);
            let (word, winner) = match &settlement.outcome {
                Outcome::Kept => {
                    kept.push(id);
                    continue;
                }
                Outcome::Dropped => ("dropped", String::new()),
                Outcome::Ended => ("ended", String::new()),
                // Replaced by nobody.
                Outcome::Returned => ("replaced", String::new()),
                Outcome::Replaced(winner) => ("replaced", winner.as_deref().map(record).unwrap_or_default()),
            };
            others.extend([id, settlement.user.to_string(), word.to_owned(), winner]);
        }
        let mut args = Vec::from(self.highest_args(sale));
        args.push((others.len() / 4).to_string());
        args.append(&mut others);
        args.append(&mut kept);
        let keys = self.keys(sale).flight();
        let reply: redis::Value = self.link.run(&self.scripts.settle, &keys, &args).await?;
        let mut reply = acted(&reply)?;
        let (_settled, _freed) = (reply.number()?, reply.number()?);
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(sale, number);
        Ok(number)
    }

    /// Entries that the sweep should look at now; each is put off by `spacing`.
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
        // One entry that cannot be read, of a later version, must not keep the others waiting.
        Ok(entries
            .iter()
            .filter_map(|entry| match read_entry(sale, entry) {
                Ok(ticket) => Some(ticket),
                Err(error) => {
                    tracing::error!(%sale, %error, "left alone by the sweep");
                    None
                }
            })
            .collect())
    }

    /// Every order in flight of a sale: the audit's view.
    pub async fn in_flight(&self, sale: &SaleId) -> Result<Vec<Ticket>, GateError> {
        let mut tickets = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(self.keys(sale).outbox()).arg(cursor).arg("COUNT").arg(1000);
            let (next, entries): (u64, Vec<(String, String)>) = self.link.query(&command).await?;
            for (_, entry) in entries {
                tickets.push(read_entry(sale, &entry)?);
            }
            if next == 0 {
                // HSCAN may show an entry twice.
                tickets.sort_by_key(|ticket| ticket.order.id);
                tickets.dedup_by_key(|ticket| ticket.order.id);
                return Ok(tickets);
            }
            cursor = next;
        }
    }
}
