//! What an operator does to a sale, in gate and database together. Every act may be repeated: a
//! crash between the two stores is finished by doing it again.

mod dead_letters;

pub use dead_letters::{DeadLetters, LetterEnd, LetterError, letter_json};

use crate::domain::{Invalid, Number, Sale, SaleId, SaleState};
use crate::gate::{Gate, GateError, GateSale, Loaded, Moved};
use crate::store::{SaleRow, Store, StoreError};

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
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
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
            let lives = !matches!(row.state, SaleState::Draft | SaleState::Closed);
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
    pub async fn open(&self, id: &SaleId) -> Result<(), ControlError> {
        let row = self.row(id).await?;
        let loaded = match row.state {
            SaleState::Draft => self.gate.load(&row.sale, row.number.epoch).await?,
            SaleState::Closed => {
                return Err(ControlError::NotFrom { state: SaleState::Closed, act: "opened" });
            }
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
        self.change(id, SaleState::Open, &[SaleState::Draft], "opened").await
    }

    /// Buyers are told `sale_paused` until it is resumed. Orders in flight go on.
    pub async fn pause(&self, id: &SaleId) -> Result<(), ControlError> {
        self.row(id).await?;
        self.change(id, SaleState::Paused, &[SaleState::Open], "paused").await
    }

    pub async fn resume(&self, id: &SaleId) -> Result<(), ControlError> {
        self.row(id).await?;
        self.change(id, SaleState::Open, &[SaleState::Paused], "resumed").await
    }

    /// For good. Orders in flight go on.
    pub async fn close(&self, id: &SaleId) -> Result<(), ControlError> {
        self.row(id).await?;
        let from = [SaleState::Open, SaleState::Paused, SaleState::Frozen, SaleState::Draft];
        self.change(id, SaleState::Closed, &from, "closed").await
    }

    /// Gate first, because the gate is what sells; then the row, by the number of the change.
    async fn change(
        &self,
        id: &SaleId,
        to: SaleState,
        from: &[SaleState],
        act: &'static str,
    ) -> Result<(), ControlError> {
        // Each act raises the gate's number: one that has lost writes must be noticed before.
        self.gate.freeze_if_behind(id, self.row(id).await?.number).await?;
        let number = match self.gate.move_to(id, to, from).await {
            Ok(Moved::Now(number) | Moved::Already(number)) => number,
            Ok(Moved::Refused(state)) => return Err(ControlError::NotFrom { state, act }),
            Err(GateError::NotLoaded) => {
                let state = self.row(id).await?.state;
                return Err(match state {
                    SaleState::Draft => ControlError::NotFrom { state, act },
                    _ => ControlError::Lost,
                });
            }
            Err(error) => return Err(error.into()),
        };
        tracing::info!(sale = %id, act, %number, "sale changed");
        Ok(self.store.set_sale_state(id, to, number).await?)
    }

    async fn row(&self, id: &SaleId) -> Result<SaleRow, ControlError> {
        self.store.sale(id).await?.ok_or_else(|| ControlError::NotFound(id.clone()))
    }
}
