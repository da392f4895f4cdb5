//! Forgetting: of a sale that is over, and of a person who asks for it.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _};
use uuid::Uuid;

use super::entities::{gate_return, item, order, order_event, payment_event, user_units};
use super::journal::{Touched, log};
use super::many::is_one_of;
use super::{Store, StoreError};
use crate::domain::{Millis, SaleId, SaleState, UserId};

/// Orders that are forgotten in one transaction.
const CHUNK: u64 = 1_000;

/// What became of a person's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// What stands in its place; another for each time.
    pub pseudonym: UserId,
    pub orders: u64,
    /// Sales in which the name still stands, because they are not archived.
    pub left: Vec<SaleId>,
}

impl Store {
    /// Deletes the orders of a sale with all that belongs to them, a thousand at a time. Says how many
    /// there were. May be repeated.
    pub async fn purge_sale(&self, sale: &SaleId) -> Result<u64, StoreError> {
        let mut purged = 0;
        loop {
            let deleted = self.within(self.purge_some(sale)).await?;
            purged += deleted;
            if deleted == 0 {
                return Ok(purged);
            }
        }
    }

    async fn purge_some(&self, sale: &SaleId) -> Result<u64, StoreError> {
        let transaction = self.begin().await?;
        let some: Vec<(Uuid, String)> = order::Entity::find()
            .select_only()
            .columns([order::Column::Id, order::Column::UserId])
            .filter(order::Column::SaleId.eq(sale.as_str()))
            .order_by_asc(order::Column::Id)
            .limit(CHUNK)
            // Orders first, as whoever changes them does.
            .lock_exclusive()
            .into_tuple()
            .all(&transaction)
            .await?;
        let (ids, users): (Vec<Uuid>, Vec<String>) = some.into_iter().unzip();
        order_event::Entity::delete_many()
            .filter(is_one_of(&transaction, order_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        payment_event::Entity::delete_many()
            .filter(is_one_of(&transaction, payment_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        gate_return::Entity::delete_many()
            .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        user_units::Entity::delete_many()
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(is_one_of(&transaction, user_units::Column::UserId, users))
            .exec(&transaction)
            .await?;
        // With no order left, none is sold.
        item::Entity::update_many()
            .col_expr(item::Column::Sold, Expr::val(0_i64))
            .filter(item::Column::SaleId.eq(sale.as_str()))
            .exec(&transaction)
            .await?;
        let deleted = order::Entity::delete_many()
            .filter(is_one_of(&transaction, order::Column::Id, ids))
            .exec(&transaction)
            .await?;
        transaction.commit().await?;
        Ok(deleted.rows_affected)
    }

    /// Puts a pseudonym in the place of a user in every archived sale, one sale after the other. May be
    /// repeated.
    pub async fn erase_user(&self, user: &UserId) -> Result<Erased, StoreError> {
        let pseudonym = UserId::parse(format!("erased-{}", Uuid::new_v4().simple()))
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let mut erased = Erased { pseudonym, orders: 0, left: Vec::new() };
        // By sale, because that is how each table can be searched for a user.
        for row in self.sales().await? {
            let sale = row.sale.id;
            if row.state == SaleState::Archived {
                erased.orders += self.within(self.rename(&sale, user, &erased.pseudonym)).await?;
            } else if self.knows(&sale, user).await? {
                erased.left.push(sale);
            }
        }
        Ok(erased)
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
        // Also of events that name him for another's order.
        let his = sea_orm::Condition::any()
            .add(is_one_of(&transaction, payment_event::Column::OrderId, ids.iter().copied()))
            .add(payment_event::Column::UserId.eq(user.as_str()));
        let events: Vec<(String, String)> = payment_event::Entity::find()
            .select_only()
            .columns([payment_event::Column::Provider, payment_event::Column::EventId])
            .filter(payment_event::Column::SaleId.eq(sale.as_str()))
            .filter(his.clone())
            .into_tuple()
            .all(&transaction)
            .await?;
        payment_event::Entity::update_many()
            .col_expr(payment_event::Column::UserId, Expr::val(Option::<String>::None))
            .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0))
            .filter(payment_event::Column::SaleId.eq(sale.as_str()))
            .filter(his)
            .exec(&transaction)
            .await?;
        let touched = events.iter().map(|(provider, event_id)| Touched::Payment { provider, event_id });
        log(&transaction, sale.as_str(), touched).await?;
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
        // A version of its own: a replay of the log must not bring the name back.
        let orders = order::Entity::update_many()
            .col_expr(order::Column::UserId, Expr::val(to.as_str()))
            .col_expr(order::Column::Version, Expr::col(order::Column::Version).add(1))
            .filter(is_one_of(&transaction, order::Column::Id, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        for ids in ids.chunks(usize::try_from(CHUNK).unwrap_or(usize::MAX)) {
            let touched = ids.iter().map(|id| Touched::Order((*id).into()));
            log(&transaction, sale.as_str(), touched).await?;
        }
        transaction.commit().await?;
        Ok(orders.rows_affected)
    }
}
