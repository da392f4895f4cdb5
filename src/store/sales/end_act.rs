//! Ending an operator's act.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QuerySelect as _,
};

use super::acts::{Restock, SaleAct};
use super::witness::record_number;
use crate::domain::Number;
use crate::store::clock::clock_of;
use crate::store::entities::{item, sale, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::states::ActState;

impl Store {
    /// Records how an act ended, and the gate's number afterwards, so that a Redis that comes back without the act is
    /// found to be behind. May be repeated; the first outcome stays.
    ///
    /// If the gate has taken units away, the item's stock is lowered too. Returns `false` if the database has sold more
    /// than the lower stock: the gate then held units that do not exist, and no longer does.
    pub async fn end_act(
        &self,
        act: &SaleAct,
        state: ActState,
        result: &str,
        number: Option<Number>,
    ) -> Result<bool, StoreError> {
        let lowers = act.restock.as_ref().filter(|restock| restock.units < 0 && state == ActState::Done);
        self.within(async {
            let transaction = self.begin().await?;
            if let (Some(number), Some(_)) = (number, &act.restock) {
                let row =
                    sale::Entity::find_by_id(act.sale.as_str()).lock_exclusive().one(&transaction).await?;
                if row.is_some_and(|row| number.epoch < row.epoch) {
                    transaction.rollback().await?;
                    let why = "the gate was rebuilt after it received the change: it is sent again";
                    return Err(StoreError::Away(why.into()));
                }
            }
            let ended = end(&transaction, act, state, result).await?;
            if ended && state == ActState::Done && STATES.contains(&act.kind.as_str()) {
                supersede(&transaction, act).await?;
            }
            if let Some(number) = number {
                record_number(&transaction, &act.sale, number).await?;
            }
            let lowered_too = match lowers.filter(|_| ended) {
                Some(restock) => lower_stock(&transaction, act, restock).await?,
                None => true,
            };
            log(&transaction, act.sale.as_str(), [Touched::Act(&act.key), Touched::Sale]).await?;
            self.commit(transaction, &[act.sale.as_str()]).await?;
            Ok(lowered_too)
        })
        .await
    }
}

/// Returns `false` if more than the lower stock is sold.
async fn lower_stock(
    transaction: &DatabaseTransaction,
    act: &SaleAct,
    restock: &Restock,
) -> Result<bool, StoreError> {
    let lowered = Expr::col(item::Column::Stock).add(restock.units);
    let updated = item::Entity::update_many()
        .col_expr(item::Column::Stock, lowered.clone())
        .filter(item::Column::SaleId.eq(act.sale.as_str()))
        .filter(item::Column::Sku.eq(restock.sku.as_str()))
        .filter(lowered.gte(Expr::col(item::Column::Sold)))
        .exec(transaction)
        .await?;
    Ok(updated.rows_affected > 0)
}

/// Acts that move a sale between states. Only a repeated request finishes them later.
const STATES: [&str; 7] = ["open", "pause", "resume", "close", "archive", "purge", "rebuild"];

/// Ends earlier acts of this kind whose outcome is unknown: the sale is in another state now.
async fn supersede(transaction: &DatabaseTransaction, act: &SaleAct) -> Result<(), StoreError> {
    let open = sale_act::Entity::find()
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Kind.is_in(STATES))
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
        .filter(sale_act::Column::AtMs.lt(act.at.0))
        .all(transaction)
        .await?;
    let keys: Vec<&str> = open.iter().map(|row| row.key.as_str()).collect();
    if keys.is_empty() {
        return Ok(());
    }
    sale_act::Entity::update_many()
        .col_expr(sale_act::Column::State, Expr::val(ActState::Refused.as_str()))
        .col_expr(sale_act::Column::Result, Expr::val(format!("not known to be done, and then {}", act.kind)))
        .col_expr(sale_act::Column::EndedAtMs, clock_of(transaction.get_database_backend()))
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Key.is_in(keys.iter().copied()))
        .exec(transaction)
        .await?;
    log(transaction, act.sale.as_str(), keys.into_iter().map(Touched::Act)).await
}

/// Returns `true` if this call ended the act.
async fn end(
    transaction: &DatabaseTransaction,
    act: &SaleAct,
    state: ActState,
    result: &str,
) -> Result<bool, StoreError> {
    let result: String = result.chars().take(500).collect();
    let updated = sale_act::Entity::update_many()
        .col_expr(sale_act::Column::State, Expr::val(state.as_str()))
        .col_expr(sale_act::Column::Result, Expr::val(result))
        .col_expr(sale_act::Column::EndedAtMs, clock_of(transaction.get_database_backend()))
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Key.eq(act.key.as_str()))
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
        .exec(transaction)
        .await?;
    Ok(updated.rows_affected == 1)
}
