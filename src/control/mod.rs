//! What an operator does to a sale, in gate and database together. Every act may be repeated: a
//! crash between the two stores is finished by doing it again.

mod acts;
mod check;
mod dead_letters;
mod end;

pub use check::Check;
pub use dead_letters::{DeadLetterActs, DeadLetterEnd, DeadLetterError, dead_letter_json};

use crate::audit::AuditError;
use crate::domain::{ActRequest, Invalid, Number, Sale, SaleId, SaleState, TermsChange, check_text};
use crate::gate::{Gate, GateError, GateSale, Loaded, Moved, Versions};
use crate::store::{SaleAct, SaleRow, Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    #[error("there is a sale {0} already")]
    Exists(SaleId),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("a sale that is {state} cannot be {act}")]
    NotFrom { state: SaleState, act: &'static str },
    #[error(
        "the sale was opened before, and Redis no longer knows it: it lost data, and opening again would sell units twice"
    )]
    Lost,
    #[error("the sale has no such item")]
    UnknownItem,
    /// Nothing was changed.
    #[error("{0}")]
    Refused(String),
    #[error("the key belongs to another act upon this sale: use a new one")]
    KeyReused,
    #[error("another act upon this item is under way; do it again")]
    Busy,
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AuditError> for ControlError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::NotFound(sale) => Self::NotFound(sale),
            AuditError::Gate(error) => Self::Gate(error),
            AuditError::Store(error) => Self::Store(error),
            // The sums ask no broker.
            AuditError::Queue(error) => Self::Refused(error.to_string()),
        }
    }
}

/// Both views of a sale. The gate's is absent where it does not know the sale.
#[derive(Debug, Clone)]
pub struct SaleStatus {
    pub row: SaleRow,
    pub gate: Option<GateSale>,
}

impl SaleStatus {
    /// The gate decides what buyers meet; the row tells the rest.
    pub fn state(&self) -> SaleState {
        self.gate.as_ref().map_or(self.row.state, |gate| gate.state)
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Control {
    gate: Gate,
    store: Store,
}

impl Control {
    pub fn new(gate: Gate, store: Store) -> Self {
        Self { gate, store }
    }

    /// Creates a draft in the database. The gate does not know it until it is opened.
    pub async fn create(&self, sale: &Sale) -> Result<(), ControlError> {
        sale.check()?;
        match self.store.create_sale(sale).await {
            Err(StoreError::Exists(_)) => Err(ControlError::Exists(sale.id.clone())),
            other => Ok(other?),
        }
    }

    /// All sales, the newest first. With Redis away, as the rows have them.
    pub async fn list(&self) -> Result<Vec<SaleStatus>, ControlError> {
        let mut listed = Vec::new();
        let mut gate_answers = true;
        for row in self.store.sales().await? {
            let lives = row.state != SaleState::Draft && !row.state.has_ended();
            let gate = match lives && gate_answers {
                true => self.gate.describe(&row.sale.id).await,
                false => Ok(None),
            };
            gate_answers &= gate.is_ok();
            listed.push(SaleStatus { row, gate: gate.unwrap_or(None) });
        }
        Ok(listed)
    }

    pub async fn show(&self, id: &SaleId) -> Result<SaleStatus, ControlError> {
        let row = self.row(id).await?;
        Ok(SaleStatus { gate: self.gate.describe(id).await?, row })
    }

    /// Loads the sale into the gate and lets it sell inside its window.
    ///
    /// In this order: loaded but closed to buyers, then the row says open, then the gate opens. A
    /// crash anywhere leaves a sale that has sold nothing, and opening again goes on. A gate that
    /// lost a sale which the row calls open is not loaded again: it may have sold everything.
    pub async fn open(&self, id: &SaleId, asked: &ActRequest) -> Result<SaleAct, ControlError> {
        self.recorded(id, "open", serde_json::json!({}), asked, self.do_open(id)).await
    }

    /// Buyers are told `sale_paused`, with a message if there is one, until it is resumed. Orders in
    /// flight go on.
    pub async fn pause(
        &self,
        id: &SaleId,
        message: Option<String>,
        asked: &ActRequest,
    ) -> Result<SaleAct, ControlError> {
        if let Some(message) = &message {
            check_text("a message", message, 200)?;
        }
        let told = TermsChange { message: Some(message.clone()), ..Default::default() };
        let args = match &message {
            None => serde_json::json!({}),
            Some(message) => serde_json::json!({ "message": message }),
        };
        self.recorded(id, "pause", args, asked, async {
            if message.is_some() {
                let state = self.show(id).await?.state();
                if !matches!(state, SaleState::Open | SaleState::Paused) {
                    return Err(ControlError::NotFrom { state, act: "paused" });
                }
                // Before, so that no buyer meets the pause without it.
                self.change_terms(id, &told, &ActRequest { key: None, ..asked.clone() }).await?;
            }
            self.move_sale(id, SaleState::Paused, &[SaleState::Open], "paused").await
        })
        .await
    }

    /// The message of the pause goes with it.
    pub async fn resume(&self, id: &SaleId, asked: &ActRequest) -> Result<SaleAct, ControlError> {
        let forget = TermsChange { message: Some(None), ..Default::default() };
        self.recorded(id, "resume", serde_json::json!({}), asked, async {
            let number = self.move_sale(id, SaleState::Open, &[SaleState::Paused], "resumed").await?;
            if self.row(id).await?.sale.terms.message.is_some() {
                self.change_terms(id, &forget, &ActRequest { key: None, ..asked.clone() }).await?;
            }
            Ok(number)
        })
        .await
    }

    /// For good. Orders in flight go on.
    pub async fn close(&self, id: &SaleId, asked: &ActRequest) -> Result<SaleAct, ControlError> {
        let from = [SaleState::Open, SaleState::Paused, SaleState::Frozen, SaleState::Draft];
        self.recorded(
            id,
            "close",
            serde_json::json!({}),
            asked,
            self.move_sale(id, SaleState::Closed, &from, "closed"),
        )
        .await
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
        // What changed the draft while it was being loaded is brought after it, now that the row says
        // open: whoever comes later tells the gate himself.
        let now = self.row(id).await?;
        self.gate.set_terms(&now.sale, now.terms_version).await?;
        for restock in self.store.restocks(id).await? {
            self.gate.restock(id, &restock.sku, restock.units, restock.version).await?;
        }
        self.move_sale(id, SaleState::Open, &[SaleState::Draft], "opened").await
    }

    /// Gate first, because the gate is what sells; then the row, by the number of the change.
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

    async fn row(&self, id: &SaleId) -> Result<SaleRow, ControlError> {
        self.store.sale(id).await?.ok_or_else(|| ControlError::NotFound(id.clone()))
    }
}
