//! Loading a sale into the gate, changing it there, and unloading it.
//!
//! A change of state, terms or stock takes the sale's next number and can be repeated. It returns only once no process
//! still refuses buyers by the previous state: see [`until_refusals_expire`].

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::core::Gate;
use super::error::GateError;
use super::fields::{read_state, terms, write_state};
use super::keys;
use super::refusal_age::until_refusals_expire;
use super::wire::{Reader, acted, broken, word};
use crate::domain::{ActEntry, Number, Sale, SaleId, SaleState, Sku};

/// The versions at which a sale is loaded. Later changes are counted from here.
#[derive(Debug, Clone)]
pub struct Versions {
    /// The epoch of the numbers that the sale takes.
    pub epoch: i64,
    /// The version of the terms.
    pub terms: i64,
    /// The version of each item's stock; 1 for an item that is not listed.
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

/// The outcome of [`Gate::load`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// This call loaded the sale.
    Now,
    /// The sale was loaded before, with this state and number; nothing changed.
    Already(SaleState, Number),
}

/// The outcome of [`Gate::restock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restocked {
    /// The units are added or taken away, by this call or an earlier one.
    Applied(Number),
    /// An earlier restock of this item is missing; nothing changed.
    Gap,
    /// Fewer units are left than the change takes away; only the version changed.
    Refused {
        /// Units left.
        left: i64,
        /// The gate's number afterwards.
        number: Number,
    },
}

/// The outcome of [`Gate::unload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unloaded {
    /// The gate does not hold the sale any more.
    Done,
    /// The sale is not closed, or orders are in flight; nothing changed.
    Refused {
        /// Its state.
        state: SaleState,
        /// Orders in flight.
        waiting: i64,
    },
}

/// The outcome of [`Gate::move_sale`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This call moved the sale, with this number.
    Now(Number),
    /// The sale was already in the requested state.
    Already(Number),
    /// The move is not allowed from this state; nothing changed.
    Refused(SaleState),
}

impl Gate {
    /// Loads items and terms. Nothing is sold until [`Gate::move_sale`] opens the sale. May be repeated: a loaded
    /// sale is not changed.
    pub async fn load(&self, sale: &Sale, versions: &Versions) -> Result<Loaded, GateError> {
        let keys = self.keys(&sale.id);
        let mut fields = terms(sale);
        fields.extend(["rules_version".to_owned(), versions.terms.to_string()]);
        let mut args = vec![versions.epoch.to_string(), fields.len().to_string()];
        args.extend(fields);
        for item in &sale.items {
            args.extend([item.sku.to_string(), item.stock.to_string(), versions.item(&item.sku).to_string()]);
        }
        // The register of sales is in another slot, so the script cannot write it. It comes first: a registered name
        // without a sale is harmless, a sale that the sweep does not know is not.
        self.register(&sale.id).await?;
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

    /// Adds the sale to the register of sales, if this Redis belongs to the installation.
    pub(super) async fn register(&self, sale: &SaleId) -> Result<(), GateError> {
        self.link.recognise().await?;
        let register = keys::sales(&self.settings.prefix);
        Ok(self.link.query(redis::cmd("SADD").arg(register).arg(sale.as_str())).await?)
    }

    /// Moves the sale to `to` if it is in one of the states `from`. May be repeated. After an error it may have been moved,
    /// and will not be moved later. A gate that is behind what this process knows is frozen instead. On return no process
    /// still refuses buyers by the previous state.
    pub async fn move_sale(
        &self,
        sale: &SaleId,
        to: SaleState,
        from: &[SaleState],
    ) -> Result<Moved, GateError> {
        self.move_in_epoch(sale, to, from, None).await
    }

    /// Pauses an open sale; with `epoch`, only in that one: a gate that was rebuilt since is another.
    pub async fn pause(&self, sale: &SaleId, epoch: Option<i64>) -> Result<Moved, GateError> {
        self.move_in_epoch(sale, SaleState::Paused, &[SaleState::Open], epoch).await
    }

    /// Moves a frozen sale that a rebuild has loaded in `epoch`. Refused if the gate has another epoch: a later
    /// rebuild has frozen it, and has not loaded it yet.
    pub async fn move_rebuilt(&self, sale: &SaleId, to: SaleState, epoch: i64) -> Result<Moved, GateError> {
        self.move_in_epoch(sale, to, &[SaleState::Frozen], Some(epoch)).await
    }

    async fn move_in_epoch(
        &self,
        sale: &SaleId,
        to: SaleState,
        from: &[SaleState],
        epoch: Option<i64>,
    ) -> Result<Moved, GateError> {
        let mut args = self.highest_args(sale).to_vec();
        args.push(write_state(to).to_owned());
        args.push(epoch.map(|epoch| epoch.to_string()).unwrap_or_default());
        args.extend(from.iter().map(|state| write_state(*state).to_owned()));
        let keys = [self.keys(sale).sale()];
        let until = Instant::now() + self.link.longest_call();
        let reply = self.run_numbered_until(&self.scripts.move_sale, &keys, args, until).await?;
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
            other => Err(broken("a reply of move_sale", other)),
        }
    }

    /// Gives the sale the terms of `sale`: window, limits, other terms, name. May be repeated; a version that is not
    /// higher than the last changes nothing. On return no process still refuses buyers by the previous terms.
    pub async fn set_terms(&self, sale: &Sale, version: i64) -> Result<Number, GateError> {
        let mut args = self.highest_args(&sale.id).to_vec();
        args.push(version.to_string());
        args.extend(terms(sale));
        let keys = [self.keys(&sale.id).sale()];
        let reply: redis::Value = self.run_numbered(&self.scripts.set_terms, &keys, &args).await?;
        let mut reply = acted(&reply)?;
        reply.text()?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        self.observe_number(&sale.id, number);
        until_refusals_expire(Instant::now()).await;
        Ok(number)
    }

    /// Adds `units` to an item; a negative number takes away units that are neither sold nor in flight. `version` is
    /// the item's version afterwards. May be repeated with the same answer. On return no process still refuses buyers
    /// by the previous stock.
    pub async fn restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        version: i64,
    ) -> Result<Restocked, GateError> {
        self.restock_once(sale, [sku.to_string(), units.to_string(), version.to_string(), String::new()])
            .await
    }

    /// The same for an operator's act on an item, which the gate keeps: see [`Gate::latest_restocks`].
    pub async fn restock_by(&self, act: &ActEntry) -> Result<Restocked, GateError> {
        let (Some(sku), Some(units), Some(version)) = (&act.sku, act.units, act.item_version) else {
            return Err(broken("no act on an item", act));
        };
        let request = serde_json::to_string(act).map_err(|error| broken("an act", error))?;
        self.restock_once(&act.sale_id, [sku.to_string(), units.to_string(), version.to_string(), request])
            .await
    }

    /// The last few acts on an item that the gate has applied or refused, the oldest first: as requested, with their
    /// outcome.
    pub async fn latest_restocks(&self, sale: &SaleId, sku: &Sku) -> Result<Vec<ActEntry>, GateError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys(sale).sale()).arg(format!("requests:{sku}"));
        let requests: Option<String> = self.read(sale, command).await?;
        let read = |line: &str| {
            let (outcome, request) = line.split_once(' ')?;
            let act: ActEntry = serde_json::from_str(request).ok()?;
            let (state, result) = match outcome {
                "applied" => ("done", format!("{:+} {sku}", act.units.unwrap_or_default())),
                _ => ("refused", "too few were left".to_owned()),
            };
            Some(ActEntry { state: state.into(), result: Some(result), ended_at: Some(act.at), ..act })
        };
        let lines = requests.iter().flat_map(|requests| requests.lines());
        lines.map(|line| read(line).ok_or_else(|| broken("a request", line))).collect()
    }

    async fn restock_once(&self, sale: &SaleId, change: [String; 4]) -> Result<Restocked, GateError> {
        let sku = change[0].clone();
        let mut args = self.highest_args(sale).to_vec();
        args.extend(change);
        let keys = self.keys(sale);
        let keys = [keys.sale(), keys.items(), keys.stock()];
        let reply: redis::Value = self.run_numbered(&self.scripts.restock, &keys, &args).await?;
        if word(&reply).as_deref() == Some("unknown_sku") {
            return Err(broken("the gate does not know the item", sku));
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

    /// Removes a closed sale with nothing in flight from the gate. May be repeated.
    pub async fn unload(&self, sale: &SaleId) -> Result<Unloaded, GateError> {
        let reply: redis::Value = self.link.run(&self.scripts.unload, &self.keys(sale).all(), &[]).await?;
        match word(&reply).as_deref() {
            Some("unloaded" | "not_loaded") => {
                // After the keys, because a registered name without a sale is harmless, and the reverse is not.
                let register = keys::sales(&self.settings.prefix);
                let () = self.link.query(redis::cmd("SREM").arg(register).arg(sale.as_str())).await?;
                self.forget(sale);
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
}
