//! The record of an act on a sale: written before the act, and completed with its result. If a key was used before,
//! the recorded act is returned and nothing is done again.

use super::error::ControlError;
use super::sales::Control;
use crate::domain::{ActRequest, Number, SaleId};
use crate::store::{ActState, BegunAct, NotBegun, OperatorAct, SaleAct};

/// An act that moves a sale between states.
pub(super) struct StateAct<'a> {
    pub(super) sale: &'a SaleId,
    /// As in [`SaleAct::kind`].
    pub(super) kind: &'static str,
    pub(super) args: serde_json::Value,
    pub(super) request: &'a ActRequest,
}

impl<'a> StateAct<'a> {
    /// An act without arguments.
    pub(super) fn new(kind: &'static str, sale: &'a SaleId, request: &'a ActRequest) -> Self {
        Self { sale, kind, args: serde_json::json!({}), request }
    }
}

impl Control {
    /// The acts on a sale, newest first.
    pub async fn acts(&self, sale: &SaleId, limit: u64) -> Result<Vec<SaleAct>, ControlError> {
        self.row(sale).await?;
        Ok(self.store.acts(sale, limit).await?)
    }

    /// The latest acts of operators, on sales and otherwise, newest first. Acts on orders are in each order's history.
    pub async fn latest_acts(&self, limit: u64) -> Result<Vec<OperatorAct>, ControlError> {
        Ok(self.store.latest_acts(limit).await?)
    }

    /// Records the act, does it, and records its result.
    pub(super) async fn recorded(
        &self,
        state_act: StateAct<'_>,
        work: impl Future<Output = Result<Number, ControlError>>,
    ) -> Result<SaleAct, ControlError> {
        let StateAct { sale, kind, args, request } = state_act;
        request.check()?;
        let args = args.to_string();
        let begun = match self.store.begin_act(sale, kind, args.clone(), request).await? {
            Ok(begun) => begun,
            Err(why) => return Err(self.not_begun(sale, why).await),
        };
        let written = same_act(begun, kind, &args)?;
        if written.state != ActState::Pending {
            return unless_refused(written);
        }
        self.row_for_gate(sale).await?;
        // On the heap: an act is a large future, and unoptimised code copies it in every frame above.
        match Box::pin(work).await {
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
            // It may have happened: it stays pending, and the caller may repeat it with the same key.
            Err(error) => Err(error),
        }
    }

    /// Records the result of an act.
    pub(super) async fn end(
        &self,
        act: SaleAct,
        state: ActState,
        mut result: String,
        number: Option<Number>,
    ) -> Result<SaleAct, ControlError> {
        if !self.store.end_act(&act, state, &result, number).await? {
            // An audit shows the difference.
            result.push_str(", from the gate only: the database has already sold the rest");
            tracing::error!(sale = %act.sale, result, "the gate had units that do not exist");
        }
        tracing::info!(sale = %act.sale, act = act.kind, by = act.by, result, "act on a sale");
        Ok(SaleAct { state, result: Some(result), ..act })
    }

    /// The error for an act that the store refused to begin.
    pub(super) async fn not_begun(&self, sale: &SaleId, why: NotBegun) -> ControlError {
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

/// The recorded act. If its key was used before, it must be the same act with the same arguments.
pub(super) fn same_act(begun: BegunAct, kind: &str, args: &str) -> Result<SaleAct, ControlError> {
    match begun {
        BegunAct::New(act) => Ok(act),
        BegunAct::Existing(act) if act.kind == kind && act.args == args => Ok(act),
        BegunAct::Existing(_) => Err(ControlError::KeyReused),
    }
}

/// The act, or the error with which it was refused.
pub(super) fn unless_refused(act: SaleAct) -> Result<SaleAct, ControlError> {
    match act.state {
        ActState::Refused => Err(ControlError::Refused(act.result.unwrap_or_default())),
        _ => Ok(act),
    }
}
