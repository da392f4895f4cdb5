//! Rebuilding a sale in the gate: begun, filled, loaded in one step. Nothing is sold meanwhile.

use std::collections::BTreeMap;

use super::sale::{read_state, terms};
use super::wire::{Reader, entry, order_id, record, word};
use super::{Gate, GateError, keys};
use crate::domain::{Number, Order, Sale, SaleId, SaleState, Sku, UserId};

/// Orders, or users, in one call.
const AT_ONCE: usize = 500;

/// What was staged and never loaded goes by itself.
const STAGED_S: u64 = 3_600;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildStart {
    /// With the state that it had in the gate.
    Frozen(Option<SaleState>),
    /// The gate's own epoch is not lower than this one.
    Behind { epoch: i64 },
}

/// What a user holds, in the order in which it is remembered.
#[derive(Debug, Clone)]
pub struct RebuiltHolding {
    pub order: Order,
    /// Its units went back; it is remembered so that the same click gets the same order.
    pub ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltItem {
    pub sku: Sku,
    pub left: i64,
    pub stock: i64,
    pub version: i64,
}

/// What a rebuild loads: the sale with its terms, who holds what, and what is left.
#[derive(Debug, Clone, Copy)]
pub struct RebuiltSale<'a> {
    pub sale: &'a Sale,
    pub terms_version: i64,
    pub users: &'a BTreeMap<UserId, Vec<RebuiltHolding>>,
    pub items: &'a [RebuiltItem],
}

impl Gate {
    /// Freezes a sale in a new epoch, whether Redis knows it or not.
    pub async fn begin_rebuild(&self, sale: &Sale, epoch: i64) -> Result<RebuildStart, GateError> {
        let register = keys::sales(&self.settings.prefix);
        let () = self.link.query(redis::cmd("SADD").arg(register).arg(sale.id.as_str())).await?;
        let fields = terms(sale);
        let mut args = vec![epoch.to_string(), fields.len().to_string()];
        args.extend(fields);
        args.extend(sale.items.iter().map(|item| item.sku.to_string()));
        let keys = self.keys(&sale.id);
        let keys = [keys.sale(), keys.items(), keys.stock()];
        let reply: redis::Value = self.link.run(&self.scripts.rebuild_begin, &keys, &args).await?;
        let mut reply = Reader::of(&reply)?;
        if reply.text()? == "behind" {
            return Ok(RebuildStart::Behind { epoch: reply.number()? });
        }
        self.observe_number(&sale.id, Number { epoch, seq: 0 });
        let before = reply.text()?;
        Ok(RebuildStart::Frozen(if before.is_empty() { None } else { Some(read_state(&before)?) }))
    }

    /// Puts orders in flight back into the outbox; `true` stands for one on the dead-letter queue. The
    /// sweep looks at them when those that the broker has lost would be overtaken. May be repeated.
    pub async fn refill_outbox(
        &self,
        sale: &SaleId,
        epoch: i64,
        orders: &[(&Order, bool)],
    ) -> Result<(), GateError> {
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.outbox(), keys.age(), keys.due()];
        for orders in orders.chunks(AT_ONCE) {
            let mut args = vec![epoch.to_string(), self.settings.overtaken_after.as_millis().to_string()];
            for (order, parked) in orders {
                args.extend([order_id(order.id), order.accepted_at.0.to_string(), entry(order, *parked)]);
            }
            let reply: redis::Value = self.link.run(&self.scripts.rebuild_flight, &keys, &args).await?;
            lost(&reply)?;
        }
        Ok(())
    }

    /// Loads who holds what and what is left, in one step, if the sale is still frozen in this epoch.
    pub async fn load_rebuilt(&self, epoch: i64, rebuilt: &RebuiltSale<'_>) -> Result<Number, GateError> {
        let RebuiltSale { sale, terms_version, users, items } = *rebuilt;
        let keys = self.keys(&sale.id);
        // Of its own, so that two who rebuild at once do not mix; the load counts what is in it.
        let staged = keys.staged(&uuid::Uuid::new_v4().simple().to_string());
        let users: Vec<(&UserId, &Vec<RebuiltHolding>)> = users.iter().collect();
        for users in users.chunks(AT_ONCE) {
            let mut put = redis::cmd("HSET");
            put.arg(&staged);
            for (user, held) in users {
                let records: Vec<String> = held.iter().map(record_of).collect();
                put.arg(user.as_str()).arg(records.join(","));
            }
            let () = self.link.query(&put).await?;
            let () = self.link.query(redis::cmd("EXPIRE").arg(&staged).arg(STAGED_S)).await?;
        }
        let mut fields = terms(sale);
        fields.extend(["rules_version".to_owned(), terms_version.to_string()]);
        let mut args = vec![epoch.to_string(), users.len().to_string(), fields.len().to_string()];
        args.extend(fields);
        for item in items {
            args.extend([
                item.sku.to_string(),
                item.left.to_string(),
                item.stock.to_string(),
                item.version.to_string(),
            ]);
        }
        let keys = [keys.sale(), keys.items(), keys.stock(), keys.users(), staged];
        let reply: redis::Value = self.link.run(&self.scripts.rebuild_load, &keys, &args).await?;
        lost(&reply)?;
        let mut reply = Reader::of(&reply)?;
        reply.text()?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(&sale.id, number);
        Ok(number)
    }
}

fn record_of(held: &RebuiltHolding) -> String {
    let record = record(&held.order);
    match (held.ended, record.rsplit_once('|')) {
        (true, Some((rest, quantity))) => format!("{rest}|-{quantity}"),
        _ => record,
    }
}

fn lost(reply: &redis::Value) -> Result<(), GateError> {
    match word(reply).as_deref() {
        Some("lost") => Err(GateError::Broken(
            "another rebuild of the sale, or somebody who closed it, was quicker".into(),
        )),
        _ => Ok(()),
    }
}
