//! The gate as the witness of the database's places.

use super::core::Gate;
use super::error::GateError;
use super::wire::acted;
use crate::domain::{Place, SaleId};

impl Gate {
    /// Tells the gate that the database has reached this place of the sale, and returns the highest place that the gate
    /// knows: above `place` if somebody has seen the database further on. May be repeated. Works on a frozen gate.
    pub async fn witness(&self, sale: &SaleId, place: Place) -> Result<Place, GateError> {
        self.observe_place(sale, place);
        let mut args = Vec::from(self.highest_args(sale));
        args.extend([place.line.to_string(), place.number.to_string()]);
        let reply: redis::Value =
            self.link.run(&self.scripts.witness, &[self.keys(sale).sale()], &args).await?;
        let mut reply = acted(&reply)?;
        let known = Place { line: reply.number()?, number: reply.number()? };
        self.observe_place(sale, known);
        Ok(known)
    }
}
