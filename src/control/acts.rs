//! Acts upon a sale that is being sold. Each is written down before it is done, with who and why; what
//! is asked for again with the same key is done once, and answered as it was.

use super::{Control, ControlError};
use crate::domain::{ActRequest, Millis, Number, SaleId, SaleState, Sku, TermsChange};
use crate::fault::fault;
use crate::gate::{GateError, Restocked};
use crate::store::{ActState, BegunAct, NotBegun, Restock, SaleAct, SaleRow};

/// Acts that died half way, looked at in one round of the upkeep.
const UNFINISHED: u64 = 100;

/// How long a sale whose window has ended may still be given a longer one.
const EXTENDABLE: std::time::Duration = std::time::Duration::from_secs(3_600);

impl Control {
    /// Adds units to an item, or takes away such as are neither sold nor in flight. On `Ok` the database
    /// and the gate have it. [`ControlError::Refused`], and whatever was wrong with what was asked for:
    /// nothing was changed. After any other error it may be begun, and then it is finished by itself: it
    /// may be asked for again with the same key.
    ///
    /// What is added is written to the database first, and what is taken away to the gate: so the
    /// gate never has more than the database. The item's version lets each of them have it once.
    pub async fn restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        asked: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        asked.check()?;
        if units == 0 {
            let rule = "above 0 to add, or below 0 to take away";
            return Err(crate::domain::Invalid { what: "units", rule }.into());
        }
        // An earlier one that died half way is finished first.
        for _ in 0..2 {
            let act = match self.store.begin_restock(sale, sku, units, asked).await? {
                Ok(begun) => begun,
                Err(NotBegun::Unfinished(earlier)) => {
                    self.finish(*earlier).await?;
                    continue;
                }
                Err(why) => return Err(self.not_begun(sale, why).await),
            };
            let args = serde_json::json!({ "sku": sku, "units": units }).to_string();
            let act = the_same(act, "restock", &args)?;
            fault!("restock.begun", return Err(GateError::Unavailable("injected".into()).into()));
            return answered(self.finish(act).await?);
        }
        Err(ControlError::Busy)
    }

    /// Changes the sale's terms: window, limits, rules. On `Ok` the database and the gate have them; an
    /// error means what it means for [`Control::restock`].
    pub async fn change_terms(
        &self,
        sale: &SaleId,
        amendment: &TermsChange,
        asked: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        asked.check()?;
        if amendment.is_empty() {
            return Err(
                crate::domain::Invalid { what: "a change", rule: "of at least one of the terms" }.into()
            );
        }
        let now = match self.gate.describe(sale).await? {
            Some(gate) => gate.now,
            None => Millis::now(),
        };
        let begun = match self.store.begin_terms_change(sale, amendment, now, asked).await? {
            Ok(begun) => begun,
            Err(why) => return Err(self.not_begun(sale, why).await),
        };
        let act = the_same(begun, "change", &serde_json::json!(amendment).to_string())?;
        fault!("change.begun", return Err(GateError::Unavailable("injected".into()).into()));
        answered(self.finish(act).await?)
    }

    /// The acts upon a sale, the newest first.
    pub async fn acts(&self, sale: &SaleId, limit: u64) -> Result<Vec<SaleAct>, ControlError> {
        self.row(sale).await?;
        Ok(self.store.acts(sale, limit).await?)
    }

    /// Finishes acts upon stock and terms that died half way; says how many. Those of a gate that is
    /// away or frozen wait.
    pub async fn finish_acts(&self) -> Result<usize, ControlError> {
        let (mut finished, mut after) = (0, Millis(0));
        loop {
            let acts = self.store.unfinished_acts(after, UNFINISHED).await?;
            let Some(last) = acts.last() else { return Ok(finished) };
            // Those that cannot be finished must not keep the later ones waiting.
            after = last.at;
            for act in acts {
                let sale = act.sale.clone();
                match self.finish(act).await {
                    Ok(_) => finished += 1,
                    Err(error) => tracing::warn!(%sale, %error, "an act waits to be finished"),
                }
            }
        }
    }

    /// Closes sales for good an hour after their window has ended: until then it may be extended.
    pub async fn close_expired_sales(&self) -> Result<usize, ControlError> {
        let mut closed = 0;
        for sale in self.gate.sales().await? {
            match self.close_if_over(&sale).await {
                Ok(now) => closed += usize::from(now),
                // Trouble with one sale is not the others'.
                Err(error) => tracing::warn!(%sale, %error, "could not be closed, though its time is over"),
            }
        }
        Ok(closed)
    }

    async fn close_if_over(&self, sale: &SaleId) -> Result<bool, ControlError> {
        let Some(gate) = self.gate.describe(sale).await? else { return Ok(false) };
        let over = gate.window.closes_at.is_some_and(|closes_at| closes_at.plus(EXTENDABLE) <= gate.now);
        let sells = matches!(gate.state, SaleState::Open | SaleState::Paused);
        // One that died between gate and row is closed in the gate alone.
        let half = gate.state == SaleState::Closed && !self.row(sale).await?.state.has_ended();
        if (sells && over) || half {
            self.close(sale, &ActRequest::by("schedule")).await?;
        }
        Ok((sells && over) || half)
    }

    /// Tells the gate what the database has decided, and writes down how it ended.
    async fn finish(&self, act: SaleAct) -> Result<SaleAct, ControlError> {
        if act.state != ActState::Pending {
            return Ok(act);
        }
        let row = self.known(&act.sale).await?;
        let (state, result, number) = match &act.restock {
            // The gate does not know a draft yet: it is loaded with what the row has.
            None if row.state == SaleState::Draft => {
                (ActState::Done, "changed before the sale was opened".to_owned(), None)
            }
            // Its books balanced without it.
            _ if row.state == SaleState::Archived => {
                (ActState::Refused, "the sale is archived".to_owned(), None)
            }
            None => {
                let number = self.gate.set_terms(&row.sale, row.terms_version).await?;
                (ActState::Done, "the terms are changed".to_owned(), Some(number))
            }
            Some(restock) => match self.tell_gate(&act.sale, restock).await? {
                Restocked::Applied(number) => {
                    (ActState::Done, format!("{:+} {}", restock.units, restock.sku), Some(number))
                }
                Restocked::Refused { left, number } => {
                    let why =
                        format!("only {} of {} are neither sold nor in flight", left.max(0), restock.sku);
                    (ActState::Refused, why, Some(number))
                }
                Restocked::Gap => return Err(GateError::Broken("a gap in an item's versions".into()).into()),
            },
        };
        fault!("act.told", return Err(GateError::Late("injected".into()).into()));
        self.end(act, state, result, number).await
    }

    /// A gate that lacks earlier changes of an item gets them first: each has its version.
    async fn tell_gate(&self, sale: &SaleId, restock: &Restock) -> Result<Restocked, ControlError> {
        let told = self.gate.restock(sale, &restock.sku, restock.units, restock.version).await?;
        if told != Restocked::Gap {
            return Ok(told);
        }
        for earlier in self.store.restocks(sale).await? {
            if earlier.sku == restock.sku && earlier.version < restock.version {
                self.gate.restock(sale, &earlier.sku, earlier.units, earlier.version).await?;
            }
        }
        Ok(self.gate.restock(sale, &restock.sku, restock.units, restock.version).await?)
    }

    async fn end(
        &self,
        act: SaleAct,
        state: ActState,
        mut result: String,
        number: Option<Number>,
    ) -> Result<SaleAct, ControlError> {
        if !self.store.end_act(&act, state, &result, number).await? {
            // Whoever looks at the books sees it: the gate had promised more than there is.
            result.push_str(", from the gate alone: the database has sold the rest");
            tracing::error!(sale = %act.sale, result, "the gate had units that do not exist");
        }
        tracing::info!(sale = %act.sale, act = act.kind, by = act.by, result, "act upon a sale");
        Ok(SaleAct { state, result: Some(result), ..act })
    }

    /// The sale's row. What the rows know of the gate goes into the next script call, which freezes a gate
    /// that is behind: a command has no memory of its own.
    async fn known(&self, sale: &SaleId) -> Result<SaleRow, ControlError> {
        let row = self.row(sale).await?;
        self.gate
            .observe_number(sale, self.store.highest_number(sale).await?.max(row.number).max(row.witnessed));
        Ok(row)
    }

    /// Writes down an act that moves the sale between states, does it, and writes down its end.
    pub(super) async fn recorded(
        &self,
        sale: &SaleId,
        kind: &'static str,
        args: serde_json::Value,
        asked: &ActRequest,
        act: impl Future<Output = Result<Number, ControlError>>,
    ) -> Result<SaleAct, ControlError> {
        asked.check()?;
        let args = args.to_string();
        let begun = match self.store.begin_act(sale, kind, args.clone(), asked).await? {
            Ok(begun) => begun,
            Err(why) => return Err(self.not_begun(sale, why).await),
        };
        let written = the_same(begun, kind, &args)?;
        if written.state != ActState::Pending {
            return answered(written);
        }
        self.known(sale).await?;
        match act.await {
            Ok(number) => self.end(written, ActState::Done, format!("at {number}"), Some(number)).await,
            Err(
                error @ (ControlError::NotFrom { .. }
                | ControlError::Refused(_)
                | ControlError::Invalid(_)
                | ControlError::Lost),
            ) => {
                self.end(written, ActState::Refused, error.to_string(), None).await?;
                Err(error)
            }
            // Whether it was done is not known: it stays pending, and may be asked for again.
            Err(error) => Err(error),
        }
    }

    async fn not_begun(&self, sale: &SaleId, why: NotBegun) -> ControlError {
        match why {
            NotBegun::NoSale => ControlError::NotFound(sale.clone()),
            NotBegun::NoItem => ControlError::UnknownItem,
            NotBegun::Invalid(invalid) => ControlError::Invalid(invalid),
            NotBegun::Refused(why) => ControlError::Refused(why),
            NotBegun::Unfinished(_) => ControlError::Busy,
            NotBegun::Ended => match self.row(sale).await {
                Ok(row) => ControlError::NotFrom { state: row.state, act: "changed" },
                Err(error) => error,
            },
        }
    }
}

/// An act with a key that was used before must be that very act.
fn the_same(begun: BegunAct, kind: &str, args: &str) -> Result<SaleAct, ControlError> {
    match begun {
        BegunAct::New(act) => Ok(act),
        BegunAct::Existing(act) if act.kind == kind && act.args == args => Ok(act),
        BegunAct::Existing(_) => Err(ControlError::KeyReused),
    }
}

fn answered(act: SaleAct) -> Result<SaleAct, ControlError> {
    match act.state {
        ActState::Refused => Err(ControlError::Refused(act.result.unwrap_or_default())),
        _ => Ok(act),
    }
}
