//! Reading a sale in the gate: its terms, its items and what is in flight, all at one moment.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::clock::ClockReading;
use super::core::Gate;
use super::error::GateError;
use super::fields::{GateItem, field, read_items, read_state, read_terms};
use super::keys;
use super::wire::{Reader, word};
use crate::domain::{Millis, Number, Place, SaleId, SaleState, Terms, Window};

/// A sale in the gate at one moment.
#[derive(Debug, Clone)]
pub struct GateSale {
    /// The name that buyers see.
    pub name: String,
    /// The state in the gate; a sale that is loaded and not opened is a draft.
    pub state: SaleState,
    /// When the sale opens and closes.
    pub window: Window,
    /// Maximum units of one user.
    pub limit_per_user: u32,
    /// The other terms.
    pub terms: Terms,
    /// The version of the terms; 0 if an earlier build loaded the sale.
    pub terms_version: i64,
    /// The last number that the sale took.
    pub number: Number,
    /// The highest place of the database in this sale that the gate witnesses.
    pub place: Place,
    /// Whether any item has its own limit per user.
    pub item_limits: bool,
    /// The items, ordered by sku.
    pub items: Vec<GateItem>,
    /// Orders in flight: accepted, with no row known to be committed.
    pub waiting: u64,
    /// When the oldest of them was accepted.
    pub oldest: Option<Millis>,
    /// Redis's clock at that moment.
    pub now: Millis,
    clock: ClockReading,
}

impl GateSale {
    /// Redis's clock now, estimated without asking Redis again: what it shows at the earliest.
    pub fn clock(&self) -> Millis {
        self.clock.earliest(Instant::now())
    }
}

impl Gate {
    /// Reads a sale at one moment; `None` if the gate does not know it.
    pub async fn describe(&self, sale: &SaleId) -> Result<Option<GateSale>, GateError> {
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items(), keys.stock(), keys.outbox(), keys.age()];
        let sent = Instant::now();
        let reply: redis::Value = self.link.run(&self.scripts.describe, &keys, &[]).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            self.observe_waiting(sale, 0);
            return Ok(None);
        }
        let described = read_description(&reply, sent)?;
        self.observe_number(sale, described.number);
        self.observe_place(sale, described.place);
        self.observe_waiting(sale, described.waiting);
        Ok(Some(described))
    }

    /// Every sale that was loaded and not unloaded, ordered by id. May include an id whose sale is not loaded. A name that
    /// is no id is logged and left out: nobody can ask for such a sale, and it must not keep the others waiting.
    pub async fn sales(&self) -> Result<Vec<SaleId>, GateError> {
        let register = keys::sales(&self.settings.prefix);
        let mut names: Vec<String> = self.link.query(redis::cmd("SMEMBERS").arg(register)).await?;
        names.sort_unstable();
        let id = |name: &String| {
            name.parse()
                .inspect_err(|_| tracing::error!(name, "redis lists a sale that has no valid id"))
                .ok()
        };
        Ok(names.iter().filter_map(id).collect())
    }
}

fn read_description(reply: &redis::Value, sent: Instant) -> Result<GateSale, GateError> {
    let mut reply = Reader::of(reply)?;
    let now = reply.millis()?;
    let fields: BTreeMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
    let left = reply.list()?.pairs()?;
    let stock: BTreeMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
    let waiting = u64::try_from(reply.number()?).unwrap_or(0);
    let oldest = reply.text()?.parse().ok().map(Millis);
    Ok(GateSale {
        name: fields.get("name").cloned().unwrap_or_default(),
        state: read_state(fields.get("state").map(String::as_str).unwrap_or_default())?,
        window: Window {
            opens_at: Millis(field(&fields, "opens_at")?),
            closes_at: field(&fields, "closes_at").ok().map(Millis),
        },
        limit_per_user: field(&fields, "limit")?,
        terms: read_terms(&fields)?,
        terms_version: field(&fields, "rules_version").unwrap_or(0),
        number: Number { epoch: field(&fields, "epoch")?, seq: field(&fields, "seq")? },
        place: Place {
            line: field(&fields, "place_line").unwrap_or(0),
            number: field(&fields, "place_number").unwrap_or(0),
        },
        item_limits: fields.get("item_limits").is_some_and(|text| text == "1"),
        items: read_items(&left, &stock, &fields)?,
        waiting,
        oldest,
        now,
        clock: ClockReading::received_now(now, sent),
    })
}
