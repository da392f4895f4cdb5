//! The end of a sale, and of what is known of a person.

use std::time::Duration;

use super::{Control, ControlError};
use crate::audit::audit;
use crate::domain::{ActRequest, Millis, SaleId, SaleState, UserId};
use crate::gate::Unloaded;
use crate::store::{Erased, SaleAct};

impl Control {
    /// Takes a closed sale whose books balance, with nothing in flight, out of the gate. Its rows stay.
    /// May be repeated: what died half way goes on.
    pub async fn archive(&self, id: &SaleId, asked: &ActRequest) -> Result<SaleAct, ControlError> {
        self.recorded(id, "archive", serde_json::json!({}), asked, self.do_archive(id)).await
    }

    async fn do_archive(&self, id: &SaleId) -> Result<crate::domain::Number, ControlError> {
        let row = self.row(id).await?;
        if !row.state.has_ended() {
            return Err(ControlError::NotFrom { state: row.state, act: "archived" });
        }
        let described = self.gate.describe(id).await?;
        let number =
            described.as_ref().map_or(row.number, |gate| gate.number).max(row.number).max(row.witnessed);
        if row.state == SaleState::Closed {
            let books = audit(&self.gate, &self.store, id).await?;
            if !books.balances() || !books.is_at_rest() {
                return Err(ControlError::Refused(format!(
                    "its books are not at rest, or do not balance: {} orders in flight, {} unsettled, {} returning, {} units missing",
                    books.in_flight,
                    books.unsettled,
                    books.unreturned,
                    books.items.iter().map(crate::audit::ItemBooks::missing).sum::<i64>(),
                )));
            }
            // The row first: a gate that forgot a sale which is not archived has lost it.
            self.store.set_sale_state(id, SaleState::Archived, number).await?;
        }
        match self.gate.unload(id).await? {
            Unloaded::Done => Ok(number),
            Unloaded::Refused { state, waiting } => Err(ControlError::Refused(format!(
                "the gate has it as {state}, with {waiting} orders in flight"
            ))),
        }
    }

    /// Forgets the orders of an archived sale, with everything that is known of them and of its users,
    /// for good. The sale itself and what operators did to it stay, so that its id is not taken again.
    /// May be repeated.
    pub async fn purge(&self, id: &SaleId, asked: &ActRequest) -> Result<SaleAct, ControlError> {
        let row = self.row(id).await?;
        self.recorded(id, "purge", serde_json::json!({}), asked, async {
            if row.state != SaleState::Archived {
                return Err(ControlError::NotFrom { state: row.state, act: "purged" });
            }
            let owed = self.store.count_payments_owed(id).await?;
            if owed > 0 {
                let why = format!("{owed} payments wait or have to go back: see `doorbuster payment list`");
                return Err(ControlError::Refused(why));
            }
            let orders = self.store.purge_sale(id).await?;
            tracing::info!(sale = %id, orders, "sale purged");
            Ok(row.number)
        })
        .await
    }

    /// Purges archived sales in which nothing has changed for so long; says how many.
    pub async fn purge_old_sales(&self, after: Duration) -> Result<usize, ControlError> {
        let mut purged = 0;
        for row in self.store.sales().await? {
            let old = row.state == SaleState::Archived && row.changed_at.plus(after) <= Millis::now();
            let id = row.sale.id;
            if !old || self.store.orders_after(&id, None, 1).await?.is_empty() {
                continue;
            }
            match self.purge(&id, &ActRequest::by("schedule")).await {
                Ok(_) => purged += 1,
                // Trouble with one sale is not the others'.
                Err(error) => tracing::warn!(sale = %id, %error, "could not be purged, though it is old"),
            }
        }
        Ok(purged)
    }

    /// Puts a name that says nothing in the place of a user's in all archived sales. Those in which he
    /// still has a part, because they are not archived, are named and left alone.
    pub async fn erase(&self, user: &UserId) -> Result<Erased, ControlError> {
        Ok(self.store.erase_user(user).await?)
    }
}
