//! A sale in the gate: loading it, moving it between states, telling what it holds.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::wire::{Reader, acted, broken, word};
use super::{Gate, GateError, keys, until_refusals_expire};
use crate::domain::{Millis, Number, Sale, SaleId, SaleState, Sku, Terms, Window};

/// What the gate holds of a sale at one moment.
#[derive(Debug, Clone)]
pub struct GateSale {
    pub name: String,
    pub state: SaleState,
    pub window: Window,
    pub limit_per_user: u32,
    pub terms: Terms,
    /// Of the terms that it was given last.
    pub terms_version: i64,
    pub number: Number,
    /// Does an item have a limit of its own?
    pub item_limits: bool,
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
    /// Of its last change of stock.
    pub version: i64,
}

/// Which version of a sale is loaded: what comes after it is counted from here.
#[derive(Debug, Clone)]
pub struct Versions {
    pub epoch: i64,
    pub terms: i64,
    /// Of each item's stock; 1 for one that is not there.
    pub items: BTreeMap<Sku, i64>,
}

impl Default for Versions {
    fn default() -> Self {
        Self { epoch: 1, terms: 1, items: BTreeMap::new() }
    }
}

impl Versions {
    fn item(&self, sku: &Sku) -> i64 {
        self.items.get(sku).copied().unwrap_or(1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    Now,
    /// Was there before, and was not touched.
    Already(SaleState, Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restocked {
    Applied(Number),
    /// An earlier change of this item is missing; nothing changed.
    Gap,
    /// Fewer units are left than were to be taken away; nothing changed but the version.
    Refused {
        left: i64,
        number: Number,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unloaded {
    Done,
    /// It is not closed, or orders are in flight; nothing changed.
    Refused {
        state: SaleState,
        waiting: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    Now(Number),
    Already(Number),
    /// The move is not allowed from this state; nothing changed.
    Refused(SaleState),
}

impl Gate {
    /// Loads items and terms; the sale sells nothing until [`Gate::move_sale`] opens it.
    pub async fn load(&self, sale: &Sale, versions: &Versions) -> Result<Loaded, GateError> {
        let keys = self.keys(&sale.id);
        let mut fields = terms(sale);
        fields.extend(["rules_version".to_owned(), versions.terms.to_string()]);
        let mut args = vec![versions.epoch.to_string(), fields.len().to_string()];
        args.extend(fields);
        for item in &sale.items {
            args.extend([item.sku.to_string(), item.stock.to_string(), versions.item(&item.sku).to_string()]);
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

    /// Moves the sale to `to` if it is in one of `from`. May be repeated. A gate that is behind what this
    /// process knows is frozen first. On return no process answers by the state before.
    pub async fn move_sale(
        &self,
        sale: &SaleId,
        to: SaleState,
        from: &[SaleState],
    ) -> Result<Moved, GateError> {
        let mut args = self.highest_args(sale).to_vec();
        args.push(write_state(to).to_owned());
        args.extend(from.iter().map(|state| write_state(*state).to_owned()));
        let keys = [self.keys(sale).sale()];
        let reply: redis::Value = self.link.run(&self.scripts.move_sale, &keys, &args).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            return Err(GateError::NotLoaded);
        }
        let mut reply = Reader::of(&reply)?;
        let answer = reply.text()?;
        if answer == "refused" {
            return Ok(Moved::Refused(read_state(&reply.text()?)?));
        }
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(sale, number);
        until_refusals_expire(Instant::now()).await;
        match answer.as_str() {
            "moved" => Ok(Moved::Now(number)),
            "already" => Ok(Moved::Already(number)),
            other => Err(broken("a reply of state", other)),
        }
    }

    /// Gives the sale the terms of `sale`: window, limit, rules, name. May be repeated; a version that
    /// is not higher than the last changes nothing. On return no process answers by the terms before.
    pub async fn set_terms(&self, sale: &Sale, version: i64) -> Result<Number, GateError> {
        let mut args = self.highest_args(&sale.id).to_vec();
        args.push(version.to_string());
        args.extend(terms(sale));
        let keys = [self.keys(&sale.id).sale()];
        let reply: redis::Value = self.link.run(&self.scripts.set_terms, &keys, &args).await?;
        let mut reply = acted(&reply)?;
        reply.text()?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(&sale.id, number);
        until_refusals_expire(Instant::now()).await;
        Ok(number)
    }

    /// Adds `units` to an item, or takes away those that are neither sold nor in flight. `version` is
    /// the item's after it. May be repeated: the answer is the same. On return no process answers by how
    /// many there were before.
    pub async fn restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        version: i64,
    ) -> Result<Restocked, GateError> {
        let mut args = self.highest_args(sale).to_vec();
        args.extend([sku.to_string(), units.to_string(), version.to_string()]);
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items(), keys.stock()];
        let reply: redis::Value = self.link.run(&self.scripts.restock, &keys, &args).await?;
        if word(&reply).as_deref() == Some("unknown_sku") {
            return Err(broken("an item that the gate does not know", sku.as_str()));
        }
        let mut reply = acted(&reply)?;
        let outcome = reply.text()?;
        if outcome == "gap" {
            return Ok(Restocked::Gap);
        }
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        let left = reply.number()?;
        self.observe_number(sale, number);
        until_refusals_expire(Instant::now()).await;
        match outcome.as_str() {
            "applied" => Ok(Restocked::Applied(number)),
            "refused" => Ok(Restocked::Refused { left, number }),
            other => Err(broken("a reply of restock", other)),
        }
    }

    /// Forgets a closed sale with nothing in flight. May be repeated.
    pub async fn unload(&self, sale: &SaleId) -> Result<Unloaded, GateError> {
        let reply: redis::Value = self.link.run(&self.scripts.unload, &self.keys(sale).all(), &[]).await?;
        match word(&reply).as_deref() {
            Some("unloaded" | "not_loaded") => {
                // After the keys: a name without a sale is harmless, the reverse is not.
                let register = keys::sales(&self.settings.prefix);
                let () = self.link.query(redis::cmd("SREM").arg(register).arg(sale.as_str())).await?;
                self.known().remove(sale);
                Ok(Unloaded::Done)
            }
            _ => {
                let mut reply = Reader::of(&reply)?;
                reply.text()?;
                let state = read_state(&reply.text()?)?;
                Ok(Unloaded::Refused { state, waiting: reply.number()? })
            }
        }
    }

    /// `None` where the gate does not know the sale.
    pub async fn describe(&self, sale: &SaleId) -> Result<Option<GateSale>, GateError> {
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items(), keys.stock(), keys.outbox(), keys.age()];
        let reply: redis::Value = self.link.run(&self.scripts.describe, &keys, &[]).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            self.observe_waiting(sale, 0);
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
            terms: read_terms(&fields)?,
            terms_version: field(&fields, "rules_version").unwrap_or(0),
            number: Number { epoch: field(&fields, "epoch")?, seq: field(&fields, "seq")? },
            item_limits: fields.get("item_limits").is_some_and(|text| text == "1"),
            items: read_items(&left, &stock, &fields)?,
            waiting,
            oldest,
            now,
            read_at: Instant::now(),
        };
        self.observe_number(sale, described.number);
        self.observe_waiting(sale, described.waiting);
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

/// A sale's terms as fields of its hash; what is not set is the empty text.
pub(super) fn terms(sale: &Sale) -> Vec<String> {
    fn text(value: Option<impl ToString>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let terms = &sale.terms;
    let of_items = sale.items.iter().map(|item| (format!("limit:{}", item.sku), text(item.limit_per_user)));
    let limited = sale.items.iter().any(|item| item.limit_per_user.is_some());
    [
        ("name", sale.name.clone()),
        ("opens_at", sale.window.opens_at.0.to_string()),
        ("closes_at", text(sale.window.closes_at.map(|at| at.0))),
        ("limit", sale.limit_per_user.to_string()),
        ("pay_within_s", text(terms.pay_within_s)),
        ("rebuy", u8::from(terms.rebuy).to_string()),
        ("late_payment", terms.late_payment.as_str().to_owned()),
        ("user_rate", text(terms.user_rate)),
        ("sale_rate", text(terms.sale_rate)),
        ("message", text(terms.message.as_ref())),
        ("retry_after", text(terms.retry_after_s)),
        // Whether the script has to look for the limits of items.
        ("item_limits", u8::from(limited).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .chain(of_items)
    .flat_map(|(name, value)| [name, value])
    .collect()
}

/// A sale that an earlier version loaded has no rules: it has those that it was sold by.
fn read_terms(fields: &BTreeMap<String, String>) -> Result<Terms, GateError> {
    let set = |name: &str| fields.get(name).filter(|text| !text.is_empty());
    fn read<T: std::str::FromStr>(text: Option<&String>) -> Result<Option<T>, GateError> {
        text.map(|text| text.parse().map_err(|_| broken("a rule of the sale", text))).transpose()
    }
    Ok(Terms {
        pay_within_s: read(set("pay_within_s"))?,
        rebuy: set("rebuy").is_none_or(|text| text != "0"),
        late_payment: read(set("late_payment"))?.unwrap_or_default(),
        user_rate: read(set("user_rate"))?,
        sale_rate: read(set("sale_rate"))?,
        message: set("message").cloned(),
        retry_after_s: read(set("retry_after"))?,
    })
}

fn field<T: std::str::FromStr>(fields: &BTreeMap<String, String>, name: &str) -> Result<T, GateError> {
    let text = fields.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| broken("a field of the sale", (name, text)))
}

fn read_items(
    left: &[(String, String)],
    stock: &BTreeMap<String, String>,
    fields: &BTreeMap<String, String>,
) -> Result<Vec<GateItem>, GateError> {
    let mut items = Vec::with_capacity(left.len());
    for (sku, left) in left {
        let number = |text: &str| text.parse().map_err(|_| broken("units of an item", text));
        items.push(GateItem {
            sku: sku.parse().map_err(|_| broken("a sku", sku))?,
            left: number(left)?,
            stock: number(stock.get(sku).map(String::as_str).unwrap_or_default())?,
            version: field(fields, &format!("version:{sku}")).unwrap_or(1),
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

pub(super) fn read_state(text: &str) -> Result<SaleState, GateError> {
    match text {
        "loading" => Ok(SaleState::Draft),
        other => other.parse().map_err(|_| broken("a sale's state", other)),
    }
}
