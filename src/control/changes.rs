//! Changes to a sale's stock and terms while it sells. Each is recorded in the database first and then applied to the
//! gate, which applies each version of an item and of the terms once.

use std::collections::BTreeSet;

use super::error::ControlError;
use super::record::{same_act, unless_refused};
use super::sales::Control;
use crate::domain::{ActRequest, Invalid, Millis, Number, SaleId, SaleState, Sku, TermsChange};
use crate::fault::fault;
use crate::gate::{GateError, Restocked};
use crate::store::{ActState, NotBegun, Restock, SaleAct};

/// Unfinished acts that maintenance reads in one query.
const UNFINISHED_PAGE: u64 = 100;

impl Control {
    /// Adds units to an item, or removes units that are neither sold nor in flight. On `Ok` the database and the gate
    /// have the change. On [`ControlError::Gate`] and [`ControlError::Store`] it may have begun: maintenance then
    /// finishes it, and the caller may repeat it with the same key. On any other error nothing has changed.
    ///
    /// Units are added in the database first, and removed from the gate first, so that the gate never has more than
    /// the database. The item's version makes each store apply the change once.
    pub async fn restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        request: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        request.check()?;
        if units == 0 {
            let rule = "above 0 to add, or below 0 to take away";
            return Err(Invalid { what: "units", rule }.into());
        }
        // Finish an earlier restock of the item first, if there is one.
        for _ in 0..2 {
            let act = match self.store.begin_restock(sale, sku, units, request).await? {
                Ok(begun) => begun,
                Err(NotBegun::Unfinished(earlier)) => {
                    self.finish(*earlier).await?;
                    continue;
                }
                Err(why) => return Err(self.not_begun(sale, why).await),
            };
            let args = serde_json::json!({ "sku": sku, "units": units }).to_string();
            let act = same_act(act, "restock", &args)?;
            fault!("restock.begun", return Err(GateError::Unavailable("injected".into()).into()));
            return unless_refused(self.finish(act).await?);
        }
        Err(ControlError::Busy)
    }

    /// Changes the sale's terms, its window and its limits. On `Ok` the database and the gate have them. The errors
    /// mean the same as for [`Control::restock`].
    pub async fn change_terms(
        &self,
        sale: &SaleId,
        change: &TermsChange,
        request: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        request.check()?;
        if change.is_empty() {
            return Err(Invalid { what: "a change", rule: "of at least one of the terms" }.into());
        }
        let now = match self.gate.describe(sale).await? {
            Some(gate) => gate.now,
            None => Millis::now(),
        };
        let begun = match self.store.begin_terms_change(sale, change, now, request).await? {
            Ok(begun) => begun,
            Err(why) => return Err(self.not_begun(sale, why).await),
        };
        let act = same_act(begun, "change", &serde_json::json!(change).to_string())?;
        fault!("change.begun", return Err(GateError::Unavailable("injected".into()).into()));
        unless_refused(self.finish(act).await?)
    }

    /// Finishes changes to stock and terms that a crash or an outage interrupted, and returns how many. If a sale's
    /// gate is unavailable or frozen, or a row of it is locked, its changes wait for the next call.
    pub async fn finish_acts(&self) -> Result<usize, ControlError> {
        let (mut finished, mut after) = (0, Millis(0));
        let mut unavailable = BTreeSet::new();
        loop {
            let acts = self.store.unfinished_acts(after, UNFINISHED_PAGE).await?;
            let Some(last) = acts.last() else { return Ok(finished) };
            // The next page begins after this one, so acts that cannot be finished do not block later ones.
            after = last.at;
            for act in acts {
                let sale = act.sale.clone();
                if unavailable.contains(&sale) {
                    continue;
                }
                match self.finish(act).await {
                    Ok(_) => finished += 1,
                    Err(error) => {
                        tracing::warn!(%sale, %error, "an act is not finished yet");
                        // What is refused for itself must hold up no other act.
                        if !error.is_broken() {
                            unavailable.insert(sale);
                        }
                    }
                }
            }
        }
    }

    /// Applies a recorded change to the gate, and records its result.
    async fn finish(&self, act: SaleAct) -> Result<SaleAct, ControlError> {
        if act.state != ActState::Pending {
            return Ok(act);
        }
        let row = self.row_for_gate(&act.sale).await?;
        let (state, result, number) = match &act.restock {
            // The gate does not have a draft yet; opening loads it with the new terms.
            None if row.state == SaleState::Draft => {
                (ActState::Done, "changed before the sale was opened".to_owned(), None)
            }
            // The sale was archived with balanced books, without this change.
            _ if row.state == SaleState::Archived => {
                (ActState::Refused, "the sale is archived".to_owned(), None)
            }
            None => {
                let number = self.gate.set_terms(&row.sale, row.terms_version).await?;
                (ActState::Done, "the terms are changed".to_owned(), Some(number))
            }
            Some(restock) => self.restock_gate(&act, restock).await?,
        };
        fault!("act.told", return Err(GateError::Late("injected".into()).into()));
        self.end(act, state, result, number).await
    }

    /// Applies one restock to the gate, after any earlier restocks of the item that the gate lacks.
    async fn restock_gate(
        &self,
        act: &SaleAct,
        restock: &Restock,
    ) -> Result<(ActState, String, Option<Number>), ControlError> {
        let (sale, entry) = (&act.sale, act.entry());
        let mut restocked = self.gate.restock_by(&entry).await?;
        if restocked == Restocked::Gap {
            for earlier in self.store.restocks(sale).await? {
                if earlier.sku == restock.sku && earlier.version < restock.version {
                    self.gate.restock(sale, &earlier.sku, earlier.units, earlier.version).await?;
                }
            }
            restocked = self.gate.restock_by(&entry).await?;
        }
        match restocked {
            Restocked::Applied(number) => {
                Ok((ActState::Done, format!("{:+} {}", restock.units, restock.sku), Some(number)))
            }
            Restocked::Refused { left, number } => {
                let why = format!("only {} of {} are neither sold nor in flight", left.max(0), restock.sku);
                Ok((ActState::Refused, why, Some(number)))
            }
            Restocked::Gap => Err(GateError::Broken("a gap in an item's versions".into()).into()),
        }
    }
}
