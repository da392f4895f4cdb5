//! Replacing the name of a person who asks to be forgotten.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::{Millis, SaleId, SaleState, UserId};
use crate::store::entities::{erasure, gate_return, order, order_event, payment_event, user_units};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::many::is_one_of;

/// Orders put into the log outbox in one statement.
const CHUNK: usize = 1_000;

/// The outcome of erasing a person's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// The name that replaces theirs; a new one for each call.
    pub pseudonym: UserId,
    /// Orders in which the name was replaced.
    pub orders: u64,
    /// Sales that still hold the name, because they are not archived. It is erased from them once they are.
    pub left: Vec<SaleId>,
}

/// A name that is erased from a sale as soon as the sale is archived.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Erasure {
    /// The sale.
    pub sale: SaleId,
    /// The name.
    pub user: UserId,
    /// When it was asked for.
    pub asked_at: Millis,
}

impl Store {
    /// Replaces a user by a pseudonym in every archived sale, one sale after the other. For the others that know them,
    /// and for those of `in_gate`, it records that the name is to go. Clears the reasons of all acts, and in the histories of
    /// all orders, that name the user as a word. May be repeated, with a different pseudonym for the sales that were left.
    pub async fn erase_user(&self, user: &UserId, in_gate: &[SaleId]) -> Result<Erased, StoreError> {
        let mut erased = Erased { pseudonym: pseudonym()?, orders: 0, left: Vec::new() };
        // People write names into reasons. No sale needs the reasons of its acts to run.
        self.erase_in_reasons(user).await?;
        // Sale by sale, because the indexes begin with the sale.
        for row in self.sales().await? {
            let sale = row.sale.id;
            if row.state == SaleState::Archived {
                erased.orders += self.within(self.rename(&sale, user, &erased.pseudonym)).await?;
            } else if in_gate.contains(&sale) || self.knows(&sale, user).await? {
                self.ask_erasure(&sale, user).await?;
                erased.left.push(sale);
            }
        }
        Ok(erased)
    }

    /// The names that wait for their sale to be archived, oldest first.
    pub async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        let rows = self
            .within(async {
                let all = erasure::Entity::find().order_by_asc(erasure::Column::AskedAtMs);
                Ok(all.all(&self.db).await?)
            })
            .await?;
        rows.into_iter()
            .map(|row| {
                let broken = |error: crate::domain::Invalid| StoreError::Broken(error.to_string());
                Ok(Erasure {
                    sale: SaleId::parse(row.sale_id).map_err(broken)?,
                    user: UserId::parse(row.user_id).map_err(broken)?,
                    asked_at: Millis(row.asked_at_ms),
                })
            })
            .collect()
    }

    /// Erases a name from archived sales, under a new pseudonym in each, and forgets that it was asked for. Returns how
    /// many orders had it. May be repeated.
    pub async fn finish_erasures(&self, user: &UserId, sales: &[SaleId]) -> Result<u64, StoreError> {
        // Of acts since it was asked for.
        self.erase_in_reasons(user).await?;
        let mut orders = 0;
        for sale in sales {
            orders += self.within(self.rename(sale, user, &pseudonym()?)).await?;
        }
        Ok(orders)
    }

    async fn erase_in_reasons(&self, user: &UserId) -> Result<(), StoreError> {
        self.within(self.erase_in_words(user)).await?;
        self.erase_in_histories(user).await
    }

    async fn ask_erasure(&self, sale: &SaleId, user: &UserId) -> Result<(), StoreError> {
        let row = erasure::ActiveModel {
            sale_id: Set(sale.to_string()),
            user_id: Set(user.to_string()),
            asked_at_ms: Set(Millis::now().0),
        };
        self.within(async {
            erasure::Entity::insert(row)
                .on_conflict(self.skip_existing(erasure::Column::SaleId))
                .exec_without_returning(&self.db)
                .await?;
            Ok(())
        })
        .await
    }

    async fn knows(&self, sale: &SaleId, user: &UserId) -> Result<bool, StoreError> {
        let key = (sale.to_string(), user.to_string());
        self.within(async {
            let units = user_units::Entity::find_by_id(key).one(&self.db).await?.is_some();
            let orders = order::Entity::find()
                .filter(order::Column::SaleId.eq(sale.as_str()))
                .filter(order::Column::UserId.eq(user.as_str()))
                .one(&self.db);
            Ok(units || orders.await?.is_some())
        })
        .await
    }

    /// Acts on sales, and others. Both tables have a row per act of an operator.
    async fn rename(&self, sale: &SaleId, user: &UserId, to: &UserId) -> Result<u64, StoreError> {
        let transaction = self.begin().await?;
        let ids: Vec<Uuid> = order::Entity::find()
            .select_only()
            .column(order::Column::Id)
            .filter(order::Column::SaleId.eq(sale.as_str()))
            .filter(order::Column::UserId.eq(user.as_str()))
            .order_by_asc(order::Column::Id)
            .lock_exclusive()
            .into_tuple()
            .all(&transaction)
            .await?;
        erase_in_payments(&transaction, sale, user, &ids).await?;
        gate_return::Entity::update_many()
            .col_expr(gate_return::Column::UserId, Expr::val(to.as_str()))
            .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        user_units::Entity::update_many()
            .col_expr(user_units::Column::UserId, Expr::val(to.as_str()))
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(user_units::Column::UserId.eq(user.as_str()))
            .exec(&transaction)
            .await?;
        // People write names into reasons.
        order_event::Entity::update_many()
            .col_expr(order_event::Column::Reason, Expr::val(Option::<String>::None))
            .filter(is_one_of(&transaction, order_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        // A new version, so that a replay of the log does not bring the name back.
        let orders = order::Entity::update_many()
            .col_expr(order::Column::UserId, Expr::val(to.as_str()))
            .col_expr(order::Column::Version, Expr::col(order::Column::Version).add(1))
            .filter(is_one_of(&transaction, order::Column::Id, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        erasure::Entity::delete_by_id((sale.to_string(), user.to_string())).exec(&transaction).await?;
        for ids in ids.chunks(CHUNK) {
            let touched = ids.iter().map(|id| Touched::Order((*id).into()));
            log(&transaction, sale.as_str(), touched).await?;
        }
        self.commit(transaction, &[sale.as_str()]).await?;
        Ok(orders.rows_affected)
    }
}

fn pseudonym() -> Result<UserId, StoreError> {
    UserId::parse(format!("erased-{}", Uuid::new_v4().simple()))
        .map_err(|error| StoreError::Broken(error.to_string()))
}

/// Removes the name from payment events for these orders, and from events that name the user for another's order.
async fn erase_in_payments(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    user: &UserId,
    orders: &[Uuid],
) -> Result<(), StoreError> {
    let theirs = sea_orm::Condition::any()
        .add(is_one_of(transaction, payment_event::Column::OrderId, orders.iter().copied()))
        .add(payment_event::Column::UserId.eq(user.as_str()));
    let events: Vec<(String, String)> = payment_event::Entity::find()
        .select_only()
        .columns([payment_event::Column::Provider, payment_event::Column::EventId])
        .filter(payment_event::Column::SaleId.eq(sale.as_str()))
        .filter(theirs.clone())
        .into_tuple()
        .all(transaction)
        .await?;
    payment_event::Entity::update_many()
        .col_expr(payment_event::Column::UserId, Expr::val(Option::<String>::None))
        .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0))
        .filter(payment_event::Column::SaleId.eq(sale.as_str()))
        .filter(theirs)
        .exec(transaction)
        .await?;
    let touched = events.iter().map(|(provider, event_id)| Touched::Payment { provider, event_id });
    log(transaction, sale.as_str(), touched).await
}
