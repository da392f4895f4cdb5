//! A sale in the gate: loading it, moving it between states, telling what it holds.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::wire::{Reader, broken, word};
use super::{Gate, GateError, keys};
use crate::domain::{Millis, Number, Sale, SaleId, SaleState, Sku, Window};

/// What the gate holds of a sale at one moment.
#[derive(Debug, Clone)]
pub struct GateSale {
    pub name: String,
    pub state: SaleState,
    pub window: Window,
    pub limit_per_user: u32,
    pub number: Number,
    pub items: Vec<GateItem>,
    /// Orders in flight: accepted, and no row known to be committed yet.
    pub waiting: u64,
    /// When the oldest of them was accepted.
    pub oldest: Option<Millis>,
    /// Redis's clock at that moment.
    pub now: Millis,
    /// That moment, by this process's own clock.
    read_at: Instant,
}

impl GateSale {
    /// Redis's clock now, as far as it can be told without asking again.
    pub fn clock(&self) -> Millis {
        self.now.plus(self.read_at.elapsed())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateItem {
    pub sku: Sku,
    /// May be below 0, when the database knew of orders that the gate did not: then nothing is sold.
    pub left: i64,
    pub stock: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    Now,
    /// Was there before, and was not touched.
    Already(SaleState, Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    Now(Number),
    Already(Number),
    /// The move is not allowed from this state; nothing changed.
    Refused(SaleState),
}

impl Gate {
    /// Loads items and terms; the sale sells nothing until [`Gate::move_to`] opens it.
    pub async fn load(&self, sale: &Sale, epoch: i64) -> Result<Loaded, GateError> {
        let keys = self.keys(&sale.id);
        let mut args = vec![
            epoch.to_string(),
            sale.name.clone(),
            sale.window.opens_at.0.to_string(),
            sale.window.closes_at.map(|at| at.0.to_string()).unwrap_or_default(),
            sale.limit_per_user.to_string(),
        ];
        for item in &sale.items {
            args.extend([item.sku.to_string(), item.stock.to_string()]);
        }
        // The register of sales lies in another slot, so it comes first: a name in it without a
        // sale is harmless, a sale that the sweep does not know is not.
        let register = keys::sales(&self.settings.prefix);
        let () = self.link.query(redis::cmd("SADD").arg(register).arg(sale.id.as_str())).await?;
        let keys = [keys.sale(), keys.items(), keys.stock()];
        let reply: redis::Value = self.link.run(&self.scripts.load, &keys, &args).await?;
        if word(&reply).as_deref() == Some("loaded") {
            return Ok(Loaded::Now);
        }
        let mut reply = Reader::of(&reply)?;
        match reply.text()?.as_str() {
            "present" => Ok(Loaded::Already(
                read_state(&reply.text()?)?,
                Number { epoch: reply.number()?, seq: reply.number()? },
            )),
            other => Err(broken("a reply of load", other)),
        }
    }

    /// Moves the sale to `to` if it is in one of `from`. May be repeated.
    pub async fn move_to(
        &self,
        sale: &SaleId,
        to: SaleState,
        from: &[SaleState],
    ) -> Result<Moved, GateError> {
        let mut args = vec![write_state(to).to_owned()];
        args.extend(from.iter().map(|state| write_state(*state).to_owned()));
        let keys = [self.keys(sale).sale()];
        let reply: redis::Value = self.link.run(&self.scripts.state, &keys, &args).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            return Err(GateError::NotLoaded);
        }
        let mut reply = Reader::of(&reply)?;
        let answer = reply.text()?;
        if answer == "refused" {
            return Ok(Moved::Refused(read_state(&reply.text()?)?));
        }
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.saw(sale, number);
        match answer.as_str() {
            "moved" => Ok(Moved::Now(number)),
            "already" => Ok(Moved::Already(number)),
            other => Err(broken("a reply of state", other)),
        }
    }

    /// `None` where the gate does not know the sale.
    pub async fn describe(&self, sale: &SaleId) -> Result<Option<GateSale>, GateError> {
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items(), keys.stock(), keys.outbox(), keys.age()];
        let reply: redis::Value = self.link.run(&self.scripts.describe, &keys, &[]).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            self.saw_waiting(sale, 0);
            return Ok(None);
        }
        let mut reply = Reader::of(&reply)?;
        let now = reply.millis()?;
        let fields: BTreeMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
        let left = reply.list()?.pairs()?;
        let stock: BTreeMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
        let waiting = u64::try_from(reply.number()?).unwrap_or(0);
        let oldest = reply.text()?.parse().ok().map(Millis);
        let described = GateSale {
            name: fields.get("name").cloned().unwrap_or_default(),
            state: read_state(fields.get("state").map(String::as_str).unwrap_or_default())?,
            window: Window {
                opens_at: Millis(field(&fields, "opens_at")?),
                closes_at: field(&fields, "closes_at").ok().map(Millis),
            },
            limit_per_user: field(&fields, "limit")?,
            number: Number { epoch: field(&fields, "epoch")?, seq: field(&fields, "seq")? },
            items: read_items(&left, &stock)?,
            waiting,
            oldest,
            now,
            read_at: Instant::now(),
        };
        self.saw(sale, described.number);
        self.saw_waiting(sale, described.waiting);
        Ok(Some(described))
    }

    /// Every sale that was ever loaded and not unloaded.
    pub async fn sales(&self) -> Result<Vec<SaleId>, GateError> {
        let register = keys::sales(&self.settings.prefix);
        let mut names: Vec<String> = self.link.query(redis::cmd("SMEMBERS").arg(register)).await?;
        names.sort_unstable();
        names.iter().map(|name| name.parse().map_err(|_| broken("a sale id", name))).collect()
    }
}

fn field<T: std::str::FromStr>(fields: &BTreeMap<String, String>, name: &str) -> Result<T, GateError> {
    let text = fields.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| broken("a field of the sale", (name, text)))
}

fn read_items(
    left: &[(String, String)],
    stock: &BTreeMap<String, String>,
) -> Result<Vec<GateItem>, GateError> {
    let mut items = Vec::with_capacity(left.len());
    for (sku, left) in left {
        let number = |text: &str| text.parse().map_err(|_| broken("units of an item", text));
        items.push(GateItem {
            sku: sku.parse().map_err(|_| broken("a sku", sku))?,
            left: number(left)?,
            stock: number(stock.get(sku).map(String::as_str).unwrap_or_default())?,
        });
    }
    items.sort_by(|a, b| a.sku.cmp(&b.sku));
    Ok(items)
}

/// In the gate a draft is a sale that is loaded and not opened yet: `loading`.
fn write_state(state: SaleState) -> &'static str {
    match state {
        SaleState::Draft => "loading",
        other => other.as_str(),
    }
}

fn read_state(text: &str) -> Result<SaleState, GateError> {
    match text {
        "loading" => Ok(SaleState::Draft),
        other => other.parse().map_err(|_| broken("a sale's state", other)),
    }
}
