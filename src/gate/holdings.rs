//! Which user holds which orders in the gate: for comparing the books, and for the refusal cache.

use std::collections::HashSet;

use super::core::Gate;
use super::error::GateError;
use super::scan::Scan;
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
    /// The holdings of a sale, page by page. Not a snapshot: an order that is held during the whole reading is in at
    /// least one page; one that comes or goes meanwhile may or may not be.
    pub fn holding_pages(&self, sale: &SaleId) -> HoldingPages<'_> {
        HoldingPages { gate: self, scan: Scan::of(self.keys(sale).users()) }
    }

    /// Everyone who holds anything of a sale, hashed by `hash`; `None` if there are more than `most`. Not a snapshot,
    /// like [`Gate::holding_pages`].
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
        let mut scan = Scan::of(key);
        while let Some(page) = scan.next(self).await? {
            users.extend(page.iter().map(|(user, _)| hash(user)));
        }
        Ok(Some(users))
    }

    /// The holdings of these users, in their order and in one round trip.
    pub async fn holdings_of(
        &self,
        sale: &SaleId,
        users: &[&UserId],
    ) -> Result<Vec<Vec<Holding>>, GateError> {
        let records = self.records_of(sale, users).await?;
        let read = records.iter().zip(users).map(|(records, user)| {
            records.as_deref().map_or(Ok(Vec::new()), |records| read_records(user.as_str(), records))
        });
        read.collect()
    }

    /// Whether the gate has a record of each of these orders, live or ended, in their order and in one round trip.
    pub async fn has_records_of(
        &self,
        sale: &SaleId,
        orders: &[(&UserId, OrderId)],
    ) -> Result<Vec<bool>, GateError> {
        let users: Vec<&UserId> = orders.iter().map(|(user, _)| *user).collect();
        let records = self.records_of(sale, &users).await?;
        let known = records.iter().zip(orders).map(|(records, (_, id))| {
            let id = order_id(*id);
            records.iter().flat_map(|records| records.split(',')).any(|record| record.starts_with(&id))
        });
        Ok(known.collect())
    }

    async fn records_of(&self, sale: &SaleId, users: &[&UserId]) -> Result<Vec<Option<String>>, GateError> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys(sale).users());
        for user in users {
            command.arg(user.as_str());
        }
        self.read(sale, command).await
    }
}

/// Goes through the holdings of a sale: see [`Gate::holding_pages`].
pub struct HoldingPages<'a> {
    gate: &'a Gate,
    scan: Scan,
}

impl HoldingPages<'_> {
    /// The next page, perhaps without a holding; `None` at the end. After an error the same page can be read again.
    pub async fn next(&mut self) -> Result<Option<Vec<Holding>>, GateError> {
        let Some(page) = self.scan.next(self.gate).await? else { return Ok(None) };
        let mut holdings = Vec::new();
        for (user, records) in page {
            holdings.extend(read_records(&user, &records)?);
        }
        Ok(Some(holdings))
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
