//! Who holds what, for whoever compares the books, and the two ways to put that right.

use std::collections::HashSet;

use super::wire::{Reader, acted, broken, order_id, read_order_id, record, word};
use super::{Gate, GateError};
use crate::domain::{Fingerprint, KeyDigest, Number, Order, OrderId, SaleId, Sku, UserId};

/// An order that a user holds, or has held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub user: UserId,
    pub id: OrderId,
    pub key: KeyDigest,
    pub fingerprint: Fingerprint,
    pub sku: Sku,
    /// Below 0 where it has ended and its units went back.
    pub quantity: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjusted {
    Done {
        left: i64,
        number: Number,
    },
    /// Something was written to the sale since the books were compared; nothing was changed.
    Stale,
}

impl Gate {
    /// All that the users of a sale hold. Not of one moment: what is there from the beginning to the end
    /// of the call is in the answer, the rest may be.
    pub async fn holdings(&self, sale: &SaleId) -> Result<Vec<Holding>, GateError> {
        let mut holdings = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(self.keys(sale).users()).arg(cursor).arg("COUNT").arg(1_000);
            let (next, users): (u64, Vec<(String, String)>) = self.link.query(&command).await?;
            for (user, records) in users {
                holdings.extend(read_records(&user, &records)?);
            }
            if next == 0 {
                // HSCAN may show a user twice: what he held last counts.
                holdings.reverse();
                let mut seen = HashSet::new();
                holdings.retain(|holding| seen.insert(holding.id));
                return Ok(holdings);
            }
            cursor = next;
        }
    }

    /// Those who hold anything of a sale, as `name` names them; `None` where they are more than `most`. Not
    /// of one moment, like [`Gate::holdings`].
    pub async fn users(
        &self,
        sale: &SaleId,
        most: usize,
        name: impl Fn(&str) -> u64,
    ) -> Result<Option<HashSet<u64>>, GateError> {
        let key = self.keys(sale).users();
        let count: usize = self.link.query(redis::cmd("HLEN").arg(&key)).await?;
        if count > most {
            return Ok(None);
        }
        let mut users = HashSet::with_capacity(count);
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(cursor).arg("COUNT").arg(1_000);
            let (next, page): (u64, Vec<(String, String)>) = self.link.query(&command).await?;
            users.extend(page.iter().map(|(user, _)| name(user)));
            if next == 0 {
                return Ok(Some(users));
            }
            cursor = next;
        }
    }

    /// What one user holds now.
    pub async fn holdings_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<Holding>, GateError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys(sale).users()).arg(user.as_str());
        let records: Option<String> = self.link.query(&command).await?;
        records.map_or(Ok(Vec::new()), |records| read_records(user.as_str(), &records))
    }

    /// Which of these orders their users hold, or have held, in one round trip.
    pub async fn has_records_of(
        &self,
        sale: &SaleId,
        orders: &[(&UserId, OrderId)],
    ) -> Result<Vec<bool>, GateError> {
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys(sale).users());
        for (user, _) in orders {
            command.arg(user.as_str());
        }
        let records: Vec<Option<String>> = self.link.query(&command).await?;
        let known = records.iter().zip(orders).map(|(records, (_, id))| {
            let id = order_id(*id);
            records.iter().flat_map(|records| records.split(',')).any(|record| record.starts_with(&id))
        });
        Ok(known.collect())
    }

    /// Takes an order into the gate that the database has as live and the gate has not. `None` where it was
    /// there; else the gate's number afterwards, which the caller writes down. May be repeated. The caller
    /// holds its user's lease.
    pub async fn adopt(&self, order: &Order) -> Result<Option<Number>, GateError> {
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
        let reply: redis::Value = self.link.run(&self.scripts.adopt, &keys, &args).await?;
        let mut reply = acted(&reply)?;
        let answer = reply.text()?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(&order.sale, number);
        Ok((answer == "adopted").then_some(number))
    }

    /// Puts right how many units of an item are left, if the gate's number is still `at`.
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
        let reply: redis::Value = self.link.run(&self.scripts.adjust, &keys, &args).await?;
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

fn read_records(user: &str, records: &str) -> Result<Vec<Holding>, GateError> {
    let unreadable = || broken("what a user holds", (user, records));
    let user: UserId = user.parse().map_err(|_| unreadable())?;
    records
        .split(',')
        .map(|record| {
            let fields: Vec<&str> = record.split('|').collect();
            let [id, key, fingerprint, sku, quantity] = fields[..] else { return Err(unreadable()) };
            Ok(Holding {
                user: user.clone(),
                id: read_order_id(id)?,
                key: key.parse().map_err(|_| unreadable())?,
                fingerprint: fingerprint.parse().map_err(|_| unreadable())?,
                sku: sku.parse().map_err(|_| unreadable())?,
                quantity: quantity.parse().map_err(|_| unreadable())?,
            })
        })
        .collect()
}
