//! [`Control`] itself, which creates, lists and shows sales.

use super::error::ControlError;
use super::operator_acts::recorded;
use crate::audit::{Audit, AuditError, audit};
use crate::domain::{ActRequest, Sale, SaleId, SaleState};
use crate::gate::{Gate, GateSale};
use crate::store::{SaleRow, Store, StoreError};

/// Both views of a sale. The gate's view is `None` if the gate does not have the sale.
#[derive(Debug, Clone)]
pub struct SaleStatus {
    /// The database's view.
    pub row: SaleRow,
    /// The gate's view.
    pub gate: Option<GateSale>,
    /// Whether Redis answered without a sale that it must have.
    pub lost_by_gate: bool,
}

impl SaleStatus {
    /// The gate's state, because the gate answers buyers; the row's state if the gate does not have the sale.
    pub fn state(&self) -> SaleState {
        self.gate.as_ref().map_or(self.row.state, |gate| gate.state)
    }

    /// Whether the sale cannot sell until `doorbuster rebuild` has finished: Redis lost it, or some of its writes.
    pub fn needs_rebuild(&self) -> bool {
        self.lost_by_gate || self.state() == SaleState::Frozen
    }

    /// `gate` is what the gate answered, if it was asked and did answer.
    fn of(row: SaleRow, gate: Option<Option<GateSale>>) -> Self {
        let lost = matches!(gate, Some(None)) && must_be_in_gate(&row);
        Self { row, gate: gate.flatten(), lost_by_gate: lost }
    }

    /// Whether Redis must have the sale and did not answer.
    pub fn is_unknown(&self) -> bool {
        self.gate.is_none() && !self.lost_by_gate && must_be_in_gate(&self.row)
    }
}

fn must_be_in_gate(row: &SaleRow) -> bool {
    matches!(row.state, SaleState::Open | SaleState::Paused)
}

/// An operator's acts on sales. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    pub(super) gate: Gate,
    pub(super) store: Store,
}

impl Control {
    /// Does not connect yet.
    pub fn new(gate: Gate, store: Store) -> Self {
        Self { gate, store }
    }

    /// Creates a draft in the database. The gate does not have it until it is opened.
    pub async fn create(&self, sale: &Sale, request: &ActRequest) -> Result<(), ControlError> {
        sale.check()?;
        request.check()?;
        let creating = async {
            match self.store.create_sale(sale).await {
                Err(StoreError::Exists(_)) => Err(ControlError::Exists(sale.id.clone())),
                other => Ok(other?),
            }
        };
        recorded(&self.store, ("create", sale.id.as_str()), request, creating, |()| "created".into()).await
    }

    /// All sales, newest first. While Redis is unavailable, only the rows.
    pub async fn list(&self) -> Result<Vec<SaleStatus>, ControlError> {
        let mut listed = Vec::new();
        let mut gate_answers = true;
        for row in self.store.sales().await? {
            let in_gate = row.state != SaleState::Draft && !row.state.has_ended();
            let gate = match in_gate && gate_answers {
                true => Some(self.gate.describe(&row.sale.id).await),
                false => None,
            };
            gate_answers &= !matches!(gate, Some(Err(_)));
            let gate = gate.and_then(Result::ok);
            listed.push(SaleStatus::of(row, gate));
        }
        Ok(listed)
    }

    /// One sale. Fails while Redis is unavailable.
    pub async fn show(&self, id: &SaleId) -> Result<SaleStatus, ControlError> {
        let row = self.row(id).await?;
        Ok(SaleStatus::of(row, Some(self.gate.describe(id).await?)))
    }

    /// The books of one sale. Fails while Redis is unavailable.
    pub async fn audit(&self, id: &SaleId) -> Result<Audit, ControlError> {
        match audit(&self.gate, &self.store, id).await {
            Err(AuditError::NotFound(_)) => Err(self.not_found(id).await),
            books => Ok(books?),
        }
    }

    pub(super) async fn row(&self, id: &SaleId) -> Result<SaleRow, ControlError> {
        match self.store.sale(id).await? {
            Some(row) => Ok(row),
            None => Err(self.not_found(id).await),
        }
    }

    /// Why the sale has no row: a database that is behind may have lost it.
    async fn not_found(&self, id: &SaleId) -> ControlError {
        match self.store.ensure_current().await {
            Ok(()) => ControlError::NotFound(id.clone()),
            Err(behind) => behind.into(),
        }
    }

    /// The sale's row, read before a write to its gate. A short-lived process has seen no number of the gate, so the
    /// next script call carries the highest number in the database: a gate that is behind it freezes.
    pub(super) async fn row_for_gate(&self, sale: &SaleId) -> Result<SaleRow, ControlError> {
        let row = self.row(sale).await?;
        let highest = self.store.highest_number(sale).await?.max(row.number).max(row.witnessed);
        self.gate.observe_number(sale, highest);
        Ok(row)
    }
}
