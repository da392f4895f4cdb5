//! Changes of an item's stock: the database first, the gate after.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QuerySelect as _};

use super::acts::{Begin, NotBegun, Restock, insert_act, lock_sale, new_act, read_act};
use crate::domain::{ActRequest, Invalid, MAX_STOCK, SaleId, SaleState, Sku};
use crate::store::entities::{item, sale, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::states::ActState;

impl Store {
    /// Begins a change of an item's stock. On return the item's next version is durable; added units are in its stock
    /// as well. Removed units leave its stock in [`Store::end_act`], once the gate has taken them away.
    pub async fn begin_restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        asked: &ActRequest,
    ) -> Result<Begin, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let row = match lock_sale(&transaction, sale, asked).await? {
                Ok(row) => row,
                Err(answer) => return Ok(answer),
            };
            let item = match lock_item(&transaction, &row, sku, units).await? {
                Ok(item) => item,
                Err(refused) => return Ok(Err(refused)),
            };
            let draft = row.state == SaleState::Draft.as_str();
            let restock = Restock { sku: sku.clone(), units, version: item.version + 1 };
            let mut update =
                item::Entity::update_many().col_expr(item::Column::Version, Expr::val(restock.version));
            // No gate sells a draft, so its stock is lowered at once.
            if units > 0 || draft {
                update = update.col_expr(item::Column::Stock, Expr::col(item::Column::Stock).add(units));
            }
            update
                .filter(item::Column::SaleId.eq(sale.as_str()))
                .filter(item::Column::Sku.eq(sku.as_str()))
                .exec(&transaction)
                .await?;
            let args = serde_json::json!({ "sku": sku, "units": units }).to_string();
            let mut act = new_act(sale, "restock", args, asked, Some(restock));
            if draft {
                (act.state, act.result) = (ActState::Done, Some("changed before the sale was opened".into()));
            }
            let begun = insert_act(&transaction, act).await?;
            self.commit(transaction, &[sale.as_str()]).await?;
            Ok(Ok(begun))
        })
        .await
    }
}

/// Locks the item's row, if its stock may change by this many units now.
async fn lock_item(
    transaction: &DatabaseTransaction,
    sale: &sale::Model,
    sku: &Sku,
    units: i64,
) -> Result<Result<item::Model, NotBegun>, StoreError> {
    if sale.state.parse().is_ok_and(SaleState::has_ended) {
        return Ok(Err(NotBegun::Ended));
    }
    let key = (sale.id.clone(), sku.to_string());
    let Some(item) = item::Entity::find_by_id(key).lock_exclusive().one(transaction).await? else {
        return Ok(Err(NotBegun::NoItem));
    };
    let unfinished = sale_act::Entity::find()
        .filter(sale_act::Column::SaleId.eq(sale.id.as_str()))
        .filter(sale_act::Column::Sku.eq(sku.as_str()))
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
        .one(transaction)
        .await?;
    if let Some(unfinished) = unfinished {
        return Ok(Err(NotBegun::Unfinished(Box::new(read_act(unfinished)?))));
    }
    let stock = item.stock.saturating_add(units);
    if !(-MAX_STOCK..=MAX_STOCK).contains(&units) || stock > MAX_STOCK {
        let rule = "such that the stock stays at most 1000000000";
        return Ok(Err(NotBegun::Invalid(Invalid { what: "units", rule })));
    }
    if sale.state == SaleState::Draft.as_str() && stock < 0 {
        return Ok(Err(NotBegun::Refused(format!("the draft has only {} of {sku}", item.stock))));
    }
    Ok(Ok(item))
}
