//! The end of a sale: archive it, purge its orders, erase a user.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::ControlError;
use super::operator_acts::recorded;
use super::record::StateAct;
use super::sales::Control;
use crate::audit::{Audit, ItemBooks, audit};
use crate::domain::{ActRequest, Millis, Number, SaleId, SaleState, UserId};
use crate::gate::Unloaded;
use crate::store::{Erased, Erasure, Purged, SaleAct};

impl Control {
    /// Takes a closed sale out of the gate, if its books balance and nothing is in flight. Its rows stay. May be
    /// repeated: the repeat resumes after a crash.
    pub async fn archive(&self, id: &SaleId, request: &ActRequest) -> Result<SaleAct, ControlError> {
        self.recorded(StateAct::new("archive", id, request), self.do_archive(id)).await
    }

    async fn do_archive(&self, id: &SaleId) -> Result<Number, ControlError> {
        let row = self.row(id).await?;
        if !row.state.has_ended() {
            return Err(ControlError::NotFrom { state: row.state, act: "archived" });
        }
        let described = self.gate.describe(id).await?;
        let number = described.map_or(row.number, |gate| gate.number).max(row.number).max(row.witnessed);
        if row.state == SaleState::Closed {
            let books = audit(&self.gate, &self.store, id).await?;
            if !books.balances() || !books.is_at_rest() {
                return Err(ControlError::Refused(unsettled(&books)));
            }
            // The row first: an opened sale that the gate lacks counts as lost unless its row says archived.
            self.store.set_sale_state(id, SaleState::Archived, number).await?;
        }
        match self.gate.unload(id).await? {
            Unloaded::Done => Ok(number),
            Unloaded::Refused { state, waiting } => Err(ControlError::Refused(format!(
                "the gate has it as {state}, with {waiting} orders in flight"
            ))),
        }
    }

    /// Deletes the orders of an archived sale for good, along with all data about them and their users. The sale and
    /// its acts stay, so that its id is not reused. May be repeated.
    pub async fn purge(&self, id: &SaleId, request: &ActRequest) -> Result<SaleAct, ControlError> {
        let row = self.row(id).await?;
        self.recorded(StateAct::new("purge", id, request), async {
            if row.state != SaleState::Archived {
                return Err(ControlError::NotFrom { state: row.state, act: "purged" });
            }
            let owed = self.store.count_payments_owed(id).await?;
            if owed > 0 {
                return Err(money_is_owed(owed));
            }
            let Purged { orders, owed } = self.store.purge_sale(id).await?;
            // One that came during the purge.
            if owed > 0 {
                return Err(money_is_owed(owed));
            }
            tracing::info!(sale = %id, orders, "sale purged");
            Ok(row.number)
        })
        .await
    }

    /// Purges archived sales that have not changed for `after`. Returns how many.
    pub async fn purge_old_sales(&self, after: Duration) -> Result<usize, ControlError> {
        self.store.ensure_current().await?;
        let mut purged = 0;
        for row in self.store.readable_sales().await?.0 {
            let old = row.state == SaleState::Archived && row.changed_at.plus(after) <= Millis::now();
            let id = row.sale.id;
            if !old {
                continue;
            }
            match self.purge_if_it_has_orders(&id).await {
                Ok(has_orders) => purged += usize::from(has_orders),
                // An error in one sale must not stop the purge of the others.
                Err(error) => tracing::warn!(sale = %id, %error, "cannot purge an old sale"),
            }
        }
        Ok(purged)
    }

    async fn purge_if_it_has_orders(&self, sale: &SaleId) -> Result<bool, ControlError> {
        let has_orders = !self.store.orders_after(sale, None, 1).await?.is_empty();
        if has_orders {
            self.purge(sale, &ActRequest::by("schedule")).await?;
        }
        Ok(has_orders)
    }

    /// Replaces a user's name with a random one in all archived sales. The result lists the other sales that know them:
    /// there it is recorded that the name is to go, and [`Control::finish_erasures`] does it once they are archived.
    pub async fn erase(&self, user: &UserId, request: &ActRequest) -> Result<Erased, ControlError> {
        request.check()?;
        let erasing = async {
            let in_gate = self.sales_with(user).await?;
            Ok(self.store.erase_user(user, &in_gate).await?)
        };
        let describe = |erased: &Erased| {
            format!("{} in {} orders; {} sales left", erased.pseudonym, erased.orders, erased.left.len())
        };
        // The record would keep the very name that is to go.
        recorded(&self.store, ("erase", "a user"), request, erasing, describe).await
    }

    /// The sales in whose gate the user has orders, whether or not they have rows.
    async fn sales_with(&self, user: &UserId) -> Result<Vec<SaleId>, ControlError> {
        let mut found = Vec::new();
        for sale in self.gate.sales().await? {
            if !self.gate.orders_of(&sale, user).await?.is_empty() {
                found.push(sale);
            }
        }
        Ok(found)
    }

    /// The names that wait for their sale to be archived, oldest first.
    pub async fn erasures(&self) -> Result<Vec<Erasure>, ControlError> {
        Ok(self.store.erasures().await?)
    }

    /// Erases the names that waited for a sale which is archived now. Returns how many.
    pub async fn finish_erasures(&self) -> Result<usize, ControlError> {
        self.store.ensure_current().await?;
        let asked = self.store.erasures().await?;
        if asked.is_empty() {
            return Ok(0);
        }
        let mut sales = self.store.sales().await?;
        sales.retain(|row| row.state == SaleState::Archived);
        // The histories of all orders are searched once for each person.
        let mut due: BTreeMap<UserId, Vec<SaleId>> = BTreeMap::new();
        for Erasure { sale, user, .. } in asked {
            if sales.iter().any(|row| row.sale.id == sale) {
                due.entry(user).or_default().push(sale);
            }
        }
        let mut erased = 0;
        for (user, sales) in due {
            let orders = match self.store.finish_erasures(&user, &sales).await {
                Ok(orders) => orders,
                // It must not keep the names of the others.
                Err(error) => {
                    tracing::warn!(%error, "a name that is to be erased is not yet");
                    continue;
                }
            };
            let names = sales.iter().map(SaleId::as_str).collect::<Vec<_>>().join(", ");
            tracing::info!(
                sales = names,
                orders,
                "a user was erased, as asked before these sales were archived"
            );
            erased += sales.len();
        }
        Ok(erased)
    }
}

fn money_is_owed(payments: u64) -> ControlError {
    let why = format!("{payments} payments are pending or must be refunded: see `doorbuster payment list`");
    ControlError::Refused(why)
}

fn unsettled(books: &Audit) -> String {
    format!(
        "its books are not at rest, or do not balance: {} orders in flight, {} unsettled, {} returning, {} units missing",
        books.in_flight,
        books.unsettled,
        books.unreturned,
        books.items.iter().map(ItemBooks::missing).sum::<i64>(),
    )
}
