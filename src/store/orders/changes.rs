//! Changes of an order after its row was inserted. One transaction per batch writes the orders' states, the units of
//! their users and items, a history row for each, and the units to return to the gate. So a unit moves once, even if
//! the process dies right after COMMIT.

use std::collections::BTreeMap;

use sea_orm::{DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _};
use uuid::Uuid;

use super::overdue::paying;
use super::read::{OrderRow, read_order};
use super::write_changes::{Change, Planned, fence, write};
use crate::domain::Act;
use crate::fault::fault;
use crate::store::clock;
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::transaction::MayCommit;

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Committed now; the row after the change.
    Now(OrderRow),
    /// Made before; nothing was written.
    Already(OrderRow),
    /// The row's state does not allow it, or it is too early; nothing was written.
    Refused(OrderRow),
    /// The order has no row yet.
    NoRow,
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

impl Store {
    /// Makes changes of different orders in one transaction; the outcomes are in the order of the changes. May be
    /// repeated: a change that was made before is [`Changed::Already`]. On return every `Now` is durable.
    /// [`Store::pending_returns`] lists an order that frees its units until [`Store::finish_returns`].
    ///
    /// [`Act::Expire`] is refused before the payment deadline by the database's clock, and while a verified payment
    /// waits.
    ///
    /// `may_commit` is called before COMMIT, as in [`Store::record`].
    pub async fn change(
        &self,
        changes: &[Change],
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Changed>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let changed = self.try_changes(&transaction, changes).await?;
            if !changed.iter().any(|changed| matches!(changed, Changed::Now(_))) {
                transaction.rollback().await?;
                return Ok(changed);
            }
            fault!("end.before", return Err(StoreError::Away("injected".into())));
            self.commit_if(may_commit, transaction, &sales_of(&changed)).await?;
            fault!("end.after", return Err(StoreError::Away("injected".into())));
            Ok(changed)
        })
        .await
    }

    /// Makes the changes in a transaction. Rows are locked in the order that [`Store::record`] uses: orders, users,
    /// items, each kind in a fixed order.
    pub(in crate::store) async fn try_changes(
        &self,
        transaction: &DatabaseTransaction,
        changes: &[Change],
    ) -> Result<Vec<Changed>, StoreError> {
        let ids = changes.iter().map(|change| change.id.uuid());
        let rows = order::Entity::find()
            .filter(is_one_of(transaction, order::Column::Id, ids))
            .order_by_asc(order::Column::Id)
            .lock_exclusive()
            .all(transaction)
            .await?;
        let now = clock::now(transaction).await?;
        let mut found = BTreeMap::new();
        for row in rows {
            let row = read_order(row)?;
            found.insert(row.order.id, row);
        }
        // A buyer who paid in time must not lose their order because the payment waits for a server.
        let expiring: Vec<Uuid> = changes
            .iter()
            .filter(|change| change.act == Act::Expire)
            .map(|change| change.id.uuid())
            .collect();
        let paying = paying(transaction, expiring).await?;
        let mut answers = Vec::with_capacity(changes.len());
        let mut planned = Vec::new();
        for change in changes {
            let Some(row) = found.remove(&change.id) else {
                answers.push(Changed::NoRow);
                continue;
            };
            let too_early = change.act == Act::Expire && row.pay_by.is_none_or(|pay_by| pay_by > now);
            let too_early = too_early || paying.contains(&change.id.uuid());
            if row.status == change.act.leads_to() {
                answers.push(Changed::Already(row));
            } else if !row.status.allows(change.act) || too_early {
                answers.push(Changed::Refused(row));
            } else {
                planned.push(Planned { at: answers.len(), change, row, now });
                // Stale, unless the fence lets it pass.
                answers.push(Changed::Stale);
            }
        }
        let stale = fence(transaction, &planned).await?;
        planned.retain(|planned| !stale.contains(&planned.at));
        if !planned.is_empty() {
            write(transaction, &planned).await?;
            let changed: Vec<OrderRow> = planned.iter().map(Planned::changed).collect();
            self.announce(transaction, changed.iter().map(OrderRow::reached)).await?;
        }
        for planned in planned {
            answers[planned.at] = Changed::Now(planned.changed());
        }
        Ok(answers)
    }
}

/// The sales in which something has changed.
fn sales_of(changed: &[Changed]) -> Vec<&str> {
    let now =
        changed.iter().filter_map(|changed| if let Changed::Now(row) = changed { Some(row) } else { None });
    now.map(|row| row.order.sale.as_str()).collect()
}
