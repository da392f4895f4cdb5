//! Which user holds which orders in the gate: for comparing the books, and for the refusal cache.

use std::collections::HashSet;

use super::core::Gate;
use super::error::GateError;
use super::wire::{broken, order_id, read_order_id};
use crate::domain::{Fingerprint, KeyDigest, OrderId, SaleId, Sku, UserId};

/// An order that a user holds, or one that has ended and is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its user.
    pub user: UserId,
    /// The order.
    pub id: OrderId,
    /// The digest of its idempotency key.
    pub key: KeyDigest,
    /// The fingerprint of its body.
    pub fingerprint: Fingerprint,
    /// The item.
    pub sku: Sku,
    /// Units. Negative if the order has ended and its units were returned.
    pub quantity: i64,
}

impl Gate {
    /// All holdings of a sale. Not a snapshot: an order that is held during the whole call is in the answer; one that
    /// comes or goes during the call may or may not be.
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
                // HSCAN may return a user twice; the last reading counts.
                holdings.reverse();
                let mut seen = HashSet::new();
                holdings.retain(|holding| seen.insert(holding.id));
                return Ok(holdings);
            }
            cursor = next;
        }
    }

    /// Everyone who holds anything of a sale, hashed by `hash`; `None` if there are more than `most`. Not a snapshot,
    /// like [`Gate::holdings`].
    pub async fn holder_hashes(
        &self,
        sale: &SaleId,
        most: usize,
        hash: impl Fn(&str) -> u64,
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
            users.extend(page.iter().map(|(user, _)| hash(user)));
            if next == 0 {
                return Ok(Some(users));
            }
            cursor = next;
        }
    }

    /// The holdings of one user.
    pub async fn holdings_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<Holding>, GateError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys(sale).users()).arg(user.as_str());
        let records: Option<String> = self.link.query(&command).await?;
        records.map_or(Ok(Vec::new()), |records| read_records(user.as_str(), &records))
    }

    /// Whether the gate has a record of each of these orders, live or ended, in their order and in one round trip.
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
}

fn read_records(user: &str, records: &str) -> Result<Vec<Holding>, GateError> {
    let unreadable = || broken("the holdings of a user", (user, records));
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
