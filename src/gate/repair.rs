//! The two repairs that a comparison of the books can make in the gate.

use tokio::time::Instant;

use super::core::Gate;
use super::error::GateError;
use super::wire::{Reader, acted, order_id, record, word};
use crate::domain::{Number, Order, SaleId, Sku};

/// The outcome of [`Gate::adjust`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjusted {
    /// The units left are corrected.
    Done {
        /// Units left now.
        left: i64,
        /// The gate's number afterwards.
        number: Number,
    },
    /// The sale was written to since the books were compared; nothing changed.
    Stale,
}

impl Gate {
    /// Adds an order to the gate that is live in the database and missing in the gate. Returns the gate's number
    /// afterwards, which the caller records, or `None` if the gate already had the order. May be repeated. The caller
    /// holds the lease of the order's user; after `until` the gate does nothing any more.
    pub async fn adopt(&self, order: &Order, until: Instant) -> Result<Option<Number>, GateError> {
        let mut args = self.highest_args(&order.sale).to_vec();
        args.extend([
            order.user.to_string(),
            order_id(order.id),
            record(order),
            order.sku.to_string(),
            order.quantity.to_string(),
        ]);
        let keys = self.keys(&order.sale);
        let keys = [keys.sale(), keys.items(), keys.users()];
        let reply = self.run_numbered_until(&self.scripts.adopt, &keys, args, until).await?;
        let mut reply = acted(&reply)?;
        let answer = reply.text()?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(&order.sale, number);
        Ok((answer == "adopted").then_some(number))
    }

    /// Adds `units` (negative to subtract) to the units left of an item, if the gate's number is still `at`, so
    /// that the correction applies to the books that were compared. A repeat returns [`Adjusted::Stale`].
    pub async fn adjust(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        at: Number,
    ) -> Result<Adjusted, GateError> {
        let args = [at.epoch.to_string(), at.seq.to_string(), sku.to_string(), units.to_string()];
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items()];
        let reply: redis::Value = self.run_numbered(&self.scripts.adjust, &keys, &args).await?;
        match word(&reply).as_deref() {
            Some("not_loaded") => Err(GateError::NotLoaded),
            Some("moved") => Ok(Adjusted::Stale),
            _ => {
                let mut reply = Reader::of(&reply)?;
                reply.text()?;
                let number = Number { epoch: reply.number()?, seq: reply.number()? };
                self.observe_number(sale, number);
                Ok(Adjusted::Done { left: reply.number()?, number })
            }
        }
    }
}
