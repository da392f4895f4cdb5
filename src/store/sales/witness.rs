//! The gate's number after a change that leaves no other trace of it. The sale's row witnesses the number, so that a
//! Redis that comes back without the change is found to be behind.

use sea_orm::sea_query::Expr;
use sea_orm::{ColumnTrait as _, Condition, DatabaseTransaction, EntityTrait as _, QueryFilter as _};

use crate::domain::{Number, SaleId};
use crate::store::entities::sale;
use crate::store::error::StoreError;

/// Raises the number that the sale's row witnesses; a lower number changes nothing.
pub(in crate::store) async fn record_number(
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
