//! Why an act on a sale did not happen, or may not have happened.

use crate::audit::AuditError;
use crate::domain::{Invalid, SaleId, SaleState};
use crate::gate::GateError;
use crate::store::StoreError;

/// After [`Gate`](Self::Gate) and [`Store`](Self::Store) the act may have begun: repeat it with the same key. After
/// any other error nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The sale has no row.
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    /// The id of a new sale is taken.
    #[error("a sale {0} already exists")]
    Exists(SaleId),
    /// The request breaks a rule of the domain.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The sale's state does not allow the act.
    #[error("a sale that is {state} cannot be {act}")]
    NotFrom {
        /// The sale's present state.
        state: SaleState,
        /// The act as a participle, such as `opened`.
        act: &'static str,
    },
    /// The sale's gate must be rebuilt first.
    #[error(
        "the sale was opened before, and Redis no longer has it: Redis lost data, and opening it again would sell units twice"
    )]
    Lost,
    /// The sale has no item with this sku.
    #[error("the sale has no such item")]
    UnknownItem,
    /// The books forbid the act; the text says why.
    #[error("{0}")]
    Refused(String),
    /// Another act has the same idempotency key.
    #[error("the key belongs to another act on this sale; use a new one")]
    KeyReused,
    /// An earlier act on the same item is not finished.
    #[error("another act on this item is in progress; try again")]
    Busy,
    /// Redis failed or did not answer.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database failed or did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ControlError {
    /// Whether repeating it would lead to the same error.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Self::Store(StoreError::Broken(_)) | Self::Gate(GateError::Broken(_)))
    }
}

impl From<AuditError> for ControlError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::NotFound(sale) => Self::NotFound(sale),
            AuditError::Gate(error) => Self::Gate(error),
            AuditError::Store(error) => Self::Store(error),
            // An audit needs no broker for its sums.
            AuditError::Queue(error) => Self::Refused(error.to_string()),
        }
    }
}
