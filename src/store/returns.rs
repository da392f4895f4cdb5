//! Units of ended orders that the gate has to be told of.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait as _, Condition, DatabaseTransaction, EntityTrait as _, PaginatorTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use super::entities::{gate_return, sale};
use super::many::is_one_of;
use super::{Store, StoreError};
use crate::domain::{Number, OrderId, SaleId, UserId};

/// An ended order whose units the gate may not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Return {
    pub id: OrderId,
    pub sale: SaleId,
    pub user: UserId,
}

impl Store {
    /// Those that wait, of all sales but `except`, the oldest first.
    pub async fn pending_returns(&self, except: &[SaleId], limit: u64) -> Result<Vec<Return>, StoreError> {
        self.within(async {
            let rows = gate_return::Entity::find()
                .filter(gate_return::Column::SaleId.is_not_in(except.iter().map(SaleId::as_str)))
                .order_by_asc(gate_return::Column::AtMs)
                .order_by_asc(gate_return::Column::OrderId)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter()
                .map(|row| {
                    let unreadable = |_| StoreError::unreadable("a return", &row);
                    Ok(Return {
                        id: row.order_id.into(),
                        sale: row.sale_id.parse().map_err(unreadable)?,
                        user: row.user_id.parse().map_err(unreadable)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Orders of one sale whose units wait.
    pub async fn returning_orders(&self, sale: &SaleId) -> Result<Vec<OrderId>, StoreError> {
        self.within(async {
            let ids: Vec<uuid::Uuid> = gate_return::Entity::find()
                .select_only()
                .column(gate_return::Column::OrderId)
                .filter(gate_return::Column::SaleId.eq(sale.as_str()))
                .into_tuple()
                .all(&self.db)
                .await?;
            Ok(ids.into_iter().map(OrderId::from).collect())
        })
        .await
    }

    /// How many of one sale wait.
    pub async fn count_returns(&self, sale: &SaleId) -> Result<u64, StoreError> {
        self.within(async {
            let waiting = gate_return::Entity::find().filter(gate_return::Column::SaleId.eq(sale.as_str()));
            Ok(waiting.count(&self.db).await?)
        })
        .await
    }

    /// The gate has the units of these orders of one sale, and had this number then. May be repeated.
    ///
    /// The number stays with the sale: a Redis that comes back without the return is behind it.
    pub async fn finish_returns(
        &self,
        sale: &SaleId,
        number: Number,
        ids: &[OrderId],
    ) -> Result<(), StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            record_number(&transaction, sale, number).await?;
            gate_return::Entity::delete_many()
                .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().map(|id| id.uuid())))
                .exec(&transaction)
                .await?;
            transaction.commit().await?;
            Ok(())
        })
        .await
    }
}

/// Remembers the gate's number of something that leaves no other trace of it.
pub(super) async fn record_number(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    number: Number,
) -> Result<(), StoreError> {
    let lower = Condition::any().add(sale::Column::ToldEpoch.lt(number.epoch)).add(
        Condition::all()
            .add(sale::Column::ToldEpoch.eq(number.epoch))
            .add(sale::Column::ToldSeq.lt(number.seq)),
    );
    sale::Entity::update_many()
        .col_expr(sale::Column::ToldEpoch, Expr::val(number.epoch))
        .col_expr(sale::Column::ToldSeq, Expr::val(number.seq))
        .filter(sale::Column::Id.eq(sale.as_str()))
        .filter(lower)
        .exec(transaction)
        .await?;
    Ok(())
}
