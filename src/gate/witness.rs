//! The gate as the witness of the database's places.

use super::core::Gate;
use super::error::GateError;
use super::keys;
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

    /// The highest place that the gate witnesses of a sale; `None` if the gate does not have the sale.
    pub async fn place(&self, sale: &SaleId) -> Result<Option<Place>, GateError> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys(sale).sale()).arg(&["place_line", "place_number"]);
        let (line, number): (Option<i64>, Option<i64>) = self.read(sale, command).await?;
        Ok(line.zip(number).map(|(line, number)| Place { line, number }))
    }

    /// Has Redis remember the place of a sale that the gate has lost: [`Gate::witness`] needs a loaded sale. A lower
    /// place than the one remembered changes nothing. May be repeated.
    pub async fn remember_place(&self, sale: &SaleId, place: Place) -> Result<(), GateError> {
        let args = [sale.to_string(), place.line.to_string(), place.number.to_string()];
        let key = keys::places(&self.settings.prefix);
        let _reply: redis::Value = self.link.run(&self.scripts.remember_place, &[key], &args).await?;
        Ok(())
    }

    /// The places that [`Gate::remember_place`] was given. Those that cannot be read are left out.
    pub async fn remembered_places(&self) -> Result<Vec<(SaleId, Place)>, GateError> {
        let command = redis::Cmd::hgetall(keys::places(&self.settings.prefix));
        let remembered: Vec<(String, String)> = self.link.query(&command).await?;
        let read = |(sale, place): (String, String)| {
            let (line, number) = place.split_once(' ')?;
            Some((sale.parse().ok()?, Place { line: line.parse().ok()?, number: number.parse().ok()? }))
        };
        Ok(remembered.into_iter().filter_map(read).collect())
    }
}
