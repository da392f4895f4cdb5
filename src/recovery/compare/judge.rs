//! The second look at one suspect: the gate, the outbox, then its row.

use super::difference::{Difference, DifferenceKind};
use crate::audit::AuditError;
use crate::domain::{Millis, Order, OrderId, OrderStatus, SaleId, UserId};
use crate::gate::{Gate, Holding};
use crate::store::Store;

pub(super) struct Judge<'a> {
    pub(super) gate: &'a Gate,
    pub(super) store: &'a Store,
    pub(super) sale: &'a SaleId,
}

impl Judge<'_> {
    /// `None` if nothing is wrong with this order of this user.
    pub(super) async fn judge(&self, id: OrderId, user: &UserId) -> Result<Option<Difference>, AuditError> {
        let held = self.gate.holdings_of(self.sale, &[user]).await?;
        let held = held.into_iter().flatten().find(|held| held.id == id && held.quantity > 0);
        let ticket = self.gate.ticket(self.sale, id).await?;
        let row = self.store.order(id).await?;
        Ok(match (&row, &ticket, &held) {
            (Some(row), Some(_), _) => Some(Difference::of(&row.order, DifferenceKind::Unsettled)),
            (Some(row), None, None) if row.status.is_live() => {
                Some(Difference::of(&row.order, DifferenceKind::UnknownToGate))
            }
            (Some(row), None, Some(_)) if !row.status.is_live() => {
                // Units on their way back are not a difference.
                let on_its_way = row.status != OrderStatus::Failed && self.store.is_returning(id).await?;
                (!on_its_way).then(|| Difference::of(&row.order, DifferenceKind::Unreturned))
            }
            (None, Some(ticket), _) if !ticket.parked => {
                Some(Difference::of(&ticket.order, DifferenceKind::Waiting))
            }
            (None, None, Some(held)) => {
                Some(Difference::of(&order_of(self.sale, held), DifferenceKind::Leaked))
            }
            _ => None,
        })
    }
}

/// The order as the gate holds it: without its number.
fn order_of(sale: &SaleId, held: &Holding) -> Order {
    Order {
        id: held.id,
        sale: sale.clone(),
        user: held.user.clone(),
        sku: held.sku.clone(),
        quantity: u32::try_from(held.quantity).unwrap_or(0),
        key: held.key,
        fingerprint: held.fingerprint,
        number: Default::default(),
        limit: u32::try_from(held.quantity).unwrap_or(1),
        accepted_at: held.id.generated_at().unwrap_or(Millis(0)),
    }
}
