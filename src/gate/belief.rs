//! Is an order still in flight? A Redis that went back in time has entries of orders that were settled since, and until
//! it has been rebuilt their rows know better.

use super::core::Gate;
use super::error::GateError;
use super::fields::read_state;
use super::keys::SaleKeys;
use super::wire::{order_id, read_entry};
use crate::domain::{Number, OrderId, Place, SaleId, SaleState, Ticket};

/// The gate's answer about an order.
#[derive(Debug, Clone)]
pub struct InFlight {
    /// The order's ticket, if the gate has an entry of it.
    pub ticket: Option<Ticket>,
    /// Whether the ticket is as new as anything that this process knows. Otherwise the order may have a row.
    pub is_believed: bool,
    /// The highest place of the database in this sale that the gate witnesses.
    pub place: Place,
}

/// The state of a sale, its number and its place.
type Fields = (Option<String>, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

/// A command that counts as a write and changes nothing. A replica refuses it, and with it the reading in the same
/// transaction: a former master that this process is still connected to must not answer buyers.
pub(super) fn refused_by_replicas(keys: &SaleKeys) -> redis::Cmd {
    redis::cmd("PERSIST").arg(keys.sale()).to_owned()
}

impl Gate {
    /// Runs a command that reads about a sale. Fails on a replica.
    pub(super) async fn read<T: redis::FromRedisValue>(
        &self,
        sale: &SaleId,
        command: redis::Cmd,
    ) -> Result<T, GateError> {
        let mut commands = redis::pipe();
        commands.atomic().add_command(command);
        commands.add_command(refused_by_replicas(&self.keys(sale))).ignore();
        let (answer,): (T,) = self.link.query_at_once(&commands).await?;
        Ok(answer)
    }

    /// The order's ticket, and whether the gate can be believed: not if its Redis has not been compared since it started,
    /// if it is frozen, or if it is behind what this process has seen. All of it is read at one moment.
    pub async fn in_flight_now(&self, sale: &SaleId, id: OrderId) -> Result<InFlight, GateError> {
        let keys = self.keys(sale);
        let mut commands = redis::pipe();
        commands.atomic();
        commands.cmd("HGET").arg(keys.outbox()).arg(order_id(id));
        commands.cmd("HMGET").arg(keys.sale()).arg(&["state", "epoch", "seq", "place_line", "place_number"]);
        commands.add_command(self.link.ask_for_script(&self.scripts.admit).await?);
        commands.add_command(refused_by_replicas(&keys)).ignore();
        // Before the gate is asked: what is taken meanwhile does not put it behind.
        let highest = self.highest_number(sale);
        let reply: (Option<String>, Fields, Vec<bool>) = self.link.query_at_once(&commands).await?;
        let (entry, (state, epoch, seq, line, place), compared) = reply;
        let state = state.as_deref().map(read_state).transpose()?;
        let number = Number { epoch: epoch.unwrap_or_default(), seq: seq.unwrap_or_default() };
        let is_believed = compared == [true] && state != Some(SaleState::Frozen) && number >= highest;
        let ticket = entry.as_deref().map(|entry| read_entry(sale, entry)).transpose()?;
        let place = Place { line: line.unwrap_or_default(), number: place.unwrap_or_default() };
        Ok(InFlight { ticket, is_believed, place })
    }
}
