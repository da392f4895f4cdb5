//! A sale's way from draft to closed: open, pause, resume, close.

use std::time::Duration;

use super::error::ControlError;
use super::record::StateAct;
use super::sales::Control;
use crate::domain::{ActRequest, Number, SaleId, SaleState, TermsChange, check_text};
use crate::gate::{GateError, Loaded, Moved, Versions};
use crate::store::SaleAct;

/// How long after its end a sale's window may still be extended.
const EXTENDABLE: Duration = Duration::from_secs(3_600);

impl Control {
    /// Loads the sale into the gate and lets it sell inside its window. On `Ok` the gate and the row say open.
    ///
    /// The order of steps: load the sale into the gate, still closed to buyers; mark the row open; open the gate. A
    /// crash anywhere leaves a sale that has sold nothing, and opening it again resumes. If the row says open but the
    /// gate does not have the sale, it is not loaded again, because it may have sold everything.
    pub async fn open(&self, id: &SaleId, request: &ActRequest) -> Result<SaleAct, ControlError> {
        self.recorded(StateAct::new("open", id, request), self.do_open(id)).await
    }

    /// Answers buyers with `sale_paused`, and the message if there is one, until the sale is resumed. Orders in
    /// flight still get their rows.
    pub async fn pause(
        &self,
        id: &SaleId,
        message: Option<String>,
        request: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        if let Some(message) = &message {
            check_text("a message", message, 200)?;
        }
        let set_message = TermsChange { message: Some(message.clone()), ..Default::default() };
        let args = match &message {
            None => serde_json::json!({}),
            Some(message) => serde_json::json!({ "message": message }),
        };
        self.recorded(StateAct { sale: id, kind: "pause", args, request }, async {
            if message.is_some() {
                let state = self.show(id).await?.state();
                if !matches!(state, SaleState::Open | SaleState::Paused) {
                    return Err(ControlError::NotFrom { state, act: "paused" });
                }
                // Set before the pause, so that no buyer sees the pause without its message.
                self.change_terms(id, &set_message, &ActRequest { key: None, ..request.clone() }).await?;
            }
            self.move_sale(id, SaleState::Paused, &[SaleState::Open], "paused").await
        })
        .await
    }

    /// Lets a paused sale sell again, and removes its pause message.
    pub async fn resume(&self, id: &SaleId, request: &ActRequest) -> Result<SaleAct, ControlError> {
        let clear_message = TermsChange { message: Some(None), ..Default::default() };
        self.recorded(StateAct::new("resume", id, request), async {
            let number = self.move_sale(id, SaleState::Open, &[SaleState::Paused], "resumed").await?;
            if self.row(id).await?.sale.terms.message.is_some() {
                self.change_terms(id, &clear_message, &ActRequest { key: None, ..request.clone() }).await?;
            }
            Ok(number)
        })
        .await
    }

    /// Ends the sale for good. Orders in flight still get their rows.
    pub async fn close(&self, id: &SaleId, request: &ActRequest) -> Result<SaleAct, ControlError> {
        let from = [SaleState::Open, SaleState::Paused, SaleState::Frozen, SaleState::Draft];
        let closed = self.move_sale(id, SaleState::Closed, &from, "closed");
        self.recorded(StateAct::new("close", id, request), closed).await
    }

    /// Closes sales an hour past the end of their window, and returns how many; until then an operator may extend the
    /// window.
    pub async fn close_expired_sales(&self) -> Result<usize, ControlError> {
        let mut closed = 0;
        for sale in self.gate.sales().await? {
            match self.close_if_expired(&sale).await {
                Ok(now) => closed += usize::from(now),
                // An error in one sale must not keep the others open.
                Err(error) => tracing::warn!(%sale, %error, "cannot close a sale past its window"),
            }
        }
        Ok(closed)
    }

    async fn close_if_expired(&self, sale: &SaleId) -> Result<bool, ControlError> {
        let Some(gate) = self.gate.describe(sale).await? else { return Ok(false) };
        let over = gate.window.closes_at.is_some_and(|closes_at| closes_at.plus(EXTENDABLE) <= gate.now);
        let sells = matches!(gate.state, SaleState::Open | SaleState::Paused);
        // A close that crashed between gate and row has closed only the gate.
        let half = gate.state == SaleState::Closed && !self.row(sale).await?.state.has_ended();
        if (sells && over) || half {
            self.close(sale, &ActRequest::by("schedule")).await?;
        }
        Ok((sells && over) || half)
    }

    async fn do_open(&self, id: &SaleId) -> Result<Number, ControlError> {
        let row = self.row(id).await?;
        let loaded = match row.state {
            SaleState::Draft => {
                let items = row.items.iter().map(|item| (item.sku.clone(), item.version)).collect();
                let versions = Versions { epoch: row.number.epoch, terms: row.terms_version, items };
                self.gate.load(&row.sale, &versions).await?
            }
            state if state.has_ended() => return Err(ControlError::NotFrom { state, act: "opened" }),
            _ => {
                let gate = self.gate.describe(id).await?.ok_or(ControlError::Lost)?;
                Loaded::Already(gate.state, gate.number)
            }
        };
        let number = match loaded {
            Loaded::Now => Number { epoch: row.number.epoch, seq: 0 },
            Loaded::Already(SaleState::Draft | SaleState::Open, number) => number,
            Loaded::Already(state, _) => return Err(ControlError::NotFrom { state, act: "opened" }),
        };
        self.store.set_sale_state(id, SaleState::Open, number).await?;
        // The draft may have changed while it was being loaded. The row says open now, so later changes update the
        // gate themselves; apply the earlier ones here.
        let now = self.row(id).await?;
        self.gate.set_terms(&now.sale, now.terms_version).await?;
        for restock in self.store.restocks(id).await? {
            self.gate.restock(id, &restock.sku, restock.units, restock.version).await?;
        }
        self.move_sale(id, SaleState::Open, &[SaleState::Draft], "opened").await
    }

    /// Moves the gate first, because the gate is what sells; then the row, with the number of the gate's change.
    async fn move_sale(
        &self,
        id: &SaleId,
        to: SaleState,
        from: &[SaleState],
        act: &'static str,
    ) -> Result<Number, ControlError> {
        let number = match self.gate.move_sale(id, to, from).await {
            Ok(Moved::Now(number) | Moved::Already(number)) => number,
            Ok(Moved::Refused(state)) => return Err(ControlError::NotFrom { state, act }),
            Err(GateError::NotLoaded) => {
                let state = self.row(id).await?.state;
                return Err(match state {
                    SaleState::Draft | SaleState::Archived => ControlError::NotFrom { state, act },
                    _ => ControlError::Lost,
                });
            }
            Err(error) => return Err(error.into()),
        };
        self.store.set_sale_state(id, to, number).await?;
        Ok(number)
    }
}
