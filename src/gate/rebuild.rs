//! Rebuilding a sale in the gate: freeze it in a new epoch, refill the outbox, load holders and items in one step.
//! Nothing is sold in the meantime.

use super::core::Gate;
use super::error::GateError;
use super::fields::{read_state, terms};
use super::wire::{Reader, broken, entry, order_id, record, word};
use crate::domain::{Number, Order, Sale, SaleId, SaleState, Sku, UserId};
use crate::fault::fault;

/// Maximum orders, or users, in one call.
const AT_ONCE: usize = 500;

/// Staged users that are never loaded expire after this many seconds.
const STAGED_S: i64 = 3_600;

/// The outcome of [`Gate::begin_rebuild`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildStart {
    /// The sale is frozen in the new epoch.
    Frozen {
        /// Its previous state, if the gate knew the sale.
        state: Option<SaleState>,
        /// The gate's number before the first rebuild since it was last loaded; zero if it did not know the sale.
        before: Number,
        /// The highest number that was known when the sale was frozen, if it was frozen because the gate is behind.
        known: Number,
    },
    /// The requested epoch is not above the gate's own; nothing changed.
    Behind {
        /// The gate's epoch.
        epoch: i64,
    },
}

/// An order that a user of a rebuilt sale holds.
#[derive(Debug, Clone)]
pub struct RebuiltHolding {
    /// The order.
    pub order: Order,
    /// Its units were returned; it is remembered so that the same click gets the same order.
    pub ended: bool,
}

/// An item of a rebuilt sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltItem {
    /// The item.
    pub sku: Sku,
    /// Units left.
    pub left: i64,
    /// Units loaded, restocks included.
    pub stock: i64,
    /// The version of its last restock.
    pub version: i64,
}

/// The state that a rebuild loads.
#[derive(Debug, Clone, Copy)]
pub struct RebuiltSale<'a> {
    /// The sale with its terms.
    pub sale: &'a Sale,
    /// The version of the terms.
    pub terms_version: i64,
    /// How many users were staged in this epoch.
    pub staged: usize,
    /// The items with the units left.
    pub items: &'a [RebuiltItem],
}

impl Gate {
    /// Freezes a sale in a new epoch, whether or not Redis knows the sale. A repeat with the same epoch returns
    /// [`RebuildStart::Behind`].
    pub async fn begin_rebuild(&self, sale: &Sale, epoch: i64) -> Result<RebuildStart, GateError> {
        self.register(&sale.id).await?;
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
        let state = reply.text()?;
        // What the rebuild before this one has staged, if it died; a running one can no longer load it.
        self.clear_staged(&sale.id, reply.number()?).await?;
        let state = if state.is_empty() { None } else { Some(read_state(&state)?) };
        Ok(RebuildStart::Frozen {
            state,
            before: read_number(&reply.text()?)?,
            known: read_number(&reply.text()?)?,
        })
    }

    /// Puts orders in flight back into the outbox; `true` marks an order on the dead-letter queue. Entries that
    /// exist stay as they are. The sweep looks at them after `overtaken_after`. May be repeated.
    ///
    /// # Errors
    /// [`GateError::Broken`] if the sale is no longer frozen in this epoch.
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
            unless_lost(&reply)?;
        }
        Ok(())
    }

    /// Forgets the users that were staged in this epoch.
    pub async fn clear_staged(&self, sale: &SaleId, epoch: i64) -> Result<(), GateError> {
        // Freed in the background: freeing a million users takes Redis a second.
        Ok(self.link.query(redis::cmd("UNLINK").arg(self.keys(sale).staged(epoch))).await?)
    }

    /// Stages users with their holdings, each oldest first. They take the place of the sale's users when the rebuild of
    /// this epoch is loaded. Each user is staged once; a repeat replaces what was staged for them.
    pub async fn stage_users(
        &self,
        sale: &SaleId,
        epoch: i64,
        users: &[(UserId, Vec<RebuiltHolding>)],
    ) -> Result<(), GateError> {
        // Each rebuild has its own epoch, so concurrent ones do not mix. The load checks the count.
        let staged = self.keys(sale).staged(epoch);
        for users in users.chunks(AT_ONCE) {
            let mut put = redis::cmd("HSET");
            put.arg(&staged);
            for (user, held) in users {
                let records: Vec<String> = held.iter().map(record_of).collect();
                put.arg(user.as_str()).arg(records.join(","));
            }
            let mut commands = redis::pipe();
            commands.add_command(put).ignore().expire(&staged, STAGED_S).ignore();
            let () = self.link.query_at_once(&commands).await?;
        }
        Ok(())
    }

    /// Loads the staged holders and the items in one step, and returns the gate's number afterwards. The sale stays
    /// frozen.
    ///
    /// # Errors
    /// [`GateError::Broken`] if the sale is no longer frozen in this epoch, or fewer users are staged than `rebuilt`
    /// says; then nothing is loaded.
    pub async fn load_rebuilt(&self, epoch: i64, rebuilt: &RebuiltSale<'_>) -> Result<Number, GateError> {
        let RebuiltSale { sale, terms_version, staged, items } = *rebuilt;
        let keys = self.keys(&sale.id);
        fault!("rebuild.staged", return Err(GateError::Unavailable("injected".into())));
        let mut fields = terms(sale);
        fields.extend(["rules_version".to_owned(), terms_version.to_string()]);
        let mut args = vec![epoch.to_string(), staged.to_string(), fields.len().to_string()];
        args.extend(fields);
        for item in items {
            args.extend([
                item.sku.to_string(),
                item.left.to_string(),
                item.stock.to_string(),
                item.version.to_string(),
            ]);
        }
        let keys = [keys.sale(), keys.items(), keys.stock(), keys.users(), keys.staged(epoch)];
        let reply: redis::Value = self.link.run(&self.scripts.rebuild_load, &keys, &args).await?;
        unless_lost(&reply)?;
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

/// Reads `epoch seq`; zero if there is none.
fn read_number(text: &str) -> Result<Number, GateError> {
    if text.is_empty() {
        return Ok(Number::default());
    }
    let number = text
        .split_once(' ')
        .and_then(|(epoch, seq)| Some(Number { epoch: epoch.parse().ok()?, seq: seq.parse().ok()? }));
    number.ok_or_else(|| broken("a number", text))
}

/// Fails if the script reports that the sale is no longer frozen in this rebuild's epoch.
fn unless_lost(reply: &redis::Value) -> Result<(), GateError> {
    match word(reply).as_deref() {
        Some("lost") => Err(GateError::Broken(
            "the sale is no longer frozen for this rebuild: another rebuild or a close came first".into(),
        )),
        _ => Ok(()),
    }
}
