//! Settling: a committed outcome ends an order's flight in the gate.

use tokio::time::Instant;

use super::core::Gate;
use super::error::GateError;
use super::wire::{acted, order_id, record};
use crate::domain::{Number, Order, OrderId, Place, SaleId, UserId};

/// The outcome of an order in the database, as the gate has to apply it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The row exists and the user keeps the order.
    Kept,
    /// Refused because the unit never existed: the user is free, and no unit goes back on sale.
    Dropped,
    /// Refused because the user already had as many as allowed. The winner, if any, takes its place. The loser's
    /// units are returned, less those of a winner that the gate did not know.
    Replaced(Option<Box<Order>>),
    /// Ended by an operator before it was confirmed: the user is free, and the units are returned.
    Returned,
    /// The order has ended in its row: its units are returned, and it is remembered as ended.
    Ended,
}

/// When a call without a deadline is late, by Redis's clock. Lua's numbers hold it exactly.
const NEVER: i64 = 1 << 53;

/// One order with its committed outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The order.
    pub id: OrderId,
    /// Its user.
    pub user: UserId,
    /// The outcome that the database has committed.
    pub outcome: Outcome,
}

impl Gate {
    /// Ends the flight of orders whose outcome is committed. Call it after COMMIT, never before: an entry without a
    /// row would be lost. May be repeated, and each time the orders are announced to [`OrderChanges`]. Returns the gate's
    /// number afterwards.
    ///
    /// [`OrderChanges`]: super::OrderChanges
    ///
    /// # Errors
    /// [`GateError::Frozen`] leaves the orders to the sweep, and [`GateError::NotLoaded`] to a rebuild. Their readers are sent
    /// to the rows, and the orders are announced all the same, if Redis answers.
    pub async fn settle(&self, sale: &SaleId, settlements: &[Settlement]) -> Result<Number, GateError> {
        self.settle_in_line(sale, i64::MAX, settlements).await
    }

    /// The same for outcomes that were read in this line of the database.
    ///
    /// # Errors
    /// [`GateError::Outdated`] if the gate knows of a later line, so that the outcomes may be lost: nothing was done.
    pub async fn settle_in_line(
        &self,
        sale: &SaleId,
        line: i64,
        settlements: &[Settlement],
    ) -> Result<Number, GateError> {
        let mut args = self.settle_args(sale, line, settlements);
        args.push(NEVER.to_string());
        let keys = self.keys(sale).flight();
        let reply = self.run_numbered(&self.scripts.settle, &keys, &args).await;
        self.settled(sale, settlements, reply).await
    }

    /// The same for outcomes that are true until then: the gate does nothing later. The caller holds the leases of the
    /// users of winners, which may end otherwise.
    pub async fn settle_until(
        &self,
        sale: &SaleId,
        settlements: &[Settlement],
        until: Instant,
    ) -> Result<Number, GateError> {
        let args = self.settle_args(sale, i64::MAX, settlements);
        let keys = self.keys(sale).flight();
        let reply = self.run_numbered_until(&self.scripts.settle, &keys, args, until).await;
        self.settled(sale, settlements, reply).await
    }

    /// The arguments of the script, without the time after which it is late.
    fn settle_args(&self, sale: &SaleId, line: i64, settlements: &[Settlement]) -> Vec<String> {
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
                // The script replaces the order with no winner.
                Outcome::Returned => ("replaced", String::new()),
                Outcome::Replaced(winner) => ("replaced", winner.as_deref().map(record).unwrap_or_default()),
            };
            others.extend([id, settlement.user.to_string(), word.to_owned(), winner]);
        }
        let mut args = Vec::from(self.highest_args(sale));
        args.extend(self.place_args(sale));
        args.extend([line.to_string(), (others.len() / 4).to_string()]);
        args.append(&mut others);
        args.append(&mut kept);
        args
    }

    /// What the script has answered. Where the gate is frozen or lost, readers are sent to the rows and the orders announced
    /// here: the entries of a frozen gate say `accepted` until it is rebuilt, and a rebuild puts back no entry of an order that
    /// has a row, so nobody would announce it later.
    async fn settled(
        &self,
        sale: &SaleId,
        settlements: &[Settlement],
        reply: Result<redis::Value, GateError>,
    ) -> Result<Number, GateError> {
        let settled = reply.and_then(|reply| self.read_settled(sale, &reply));
        if let Err(GateError::Frozen | GateError::NotLoaded) = settled {
            let ids: Vec<OrderId> = settlements.iter().map(|settlement| settlement.id).collect();
            if let Err(error) = self.mark_changed(sale, &ids).await {
                tracing::debug!(%sale, %error, "those who follow unsettled orders hear of their rows later");
            }
        }
        settled
    }

    fn read_settled(&self, sale: &SaleId, reply: &redis::Value) -> Result<Number, GateError> {
        let mut reply = acted(reply)?;
        let (_settled, _freed) = (reply.number()?, reply.number()?);
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        let place = Place { line: reply.number()?, number: reply.number()? };
        self.observe_number(sale, number);
        self.observe_place(sale, place);
        Ok(number)
    }
}
