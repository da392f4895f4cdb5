//! Acts that change what a sale offers, its stock or its terms: the database first, the gate after.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use super::acts::{ActState, BegunAct, NotBegun, Restock, insert_act, new_act, read_act, sale_for};
use super::entities::{item, sale, sale_act};
use super::sales::{read_sale, terms_of};
use super::{Store, StoreError};
use crate::domain::{ActRequest, Invalid, MAX_STOCK, Millis, SaleId, SaleState, Sku, TermsChange};

impl Store {
    /// Begins a change of an item's stock: the item's next version, and where units are added also its
    /// new stock. Fewer units is written down when the gate has taken them away.
    pub async fn begin_restock(
        &self,
        sale: &SaleId,
        sku: &Sku,
        units: i64,
        asked: &ActRequest,
    ) -> Result<Result<BegunAct, NotBegun>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let row = match sale_for(&transaction, sale, asked).await? {
                Ok(row) => row,
                Err(answer) => return Ok(answer),
            };
            let args = serde_json::json!({ "sku": sku, "units": units }).to_string();
            if row.state.parse().is_ok_and(SaleState::has_ended) {
                return Ok(Err(NotBegun::Ended));
            }
            let key = (sale.to_string(), sku.to_string());
            let Some(item) = item::Entity::find_by_id(key).lock_exclusive().one(&transaction).await? else {
                return Ok(Err(NotBegun::NoItem));
            };
            let unfinished = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .filter(sale_act::Column::Sku.eq(sku.as_str()))
                .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                .one(&transaction)
                .await?;
            if let Some(unfinished) = unfinished {
                return Ok(Err(NotBegun::Unfinished(Box::new(read_act(unfinished)?))));
            }
            let stock = item.stock.saturating_add(units);
            if !(-MAX_STOCK..=MAX_STOCK).contains(&units) || stock > MAX_STOCK {
                let rule = "such that the stock stays at most 1000000000";
                return Ok(Err(NotBegun::Invalid(Invalid { what: "units", rule })));
            }
            let draft = row.state == SaleState::Draft.as_str();
            if draft && stock < 0 {
                return Ok(Err(NotBegun::Refused(format!("the draft has only {} of {sku}", item.stock))));
            }
            let restock = Restock { sku: sku.clone(), units, version: item.version + 1 };
            let mut update =
                item::Entity::update_many().col_expr(item::Column::Version, Expr::val(restock.version));
            // No gate sells a draft: what it has fewer, it has fewer at once.
            if units > 0 || draft {
                update = update.col_expr(item::Column::Stock, Expr::col(item::Column::Stock).add(units));
            }
            update
                .filter(item::Column::SaleId.eq(sale.as_str()))
                .filter(item::Column::Sku.eq(sku.as_str()))
                .exec(&transaction)
                .await?;
            let mut act = new_act(sale, "restock", args, asked, Some(restock));
            if draft {
                (act.state, act.result) = (ActState::Done, Some("changed before the sale was opened".into()));
            }
            let begun = insert_act(&transaction, act).await?;
            transaction.commit().await?;
            Ok(Ok(begun))
        })
        .await
    }

    /// Gives a sale new terms, as its next version; the gate is told afterwards.
    pub async fn begin_terms_change(
        &self,
        sale: &SaleId,
        change: &TermsChange,
        now: Millis,
        asked: &ActRequest,
    ) -> Result<Result<BegunAct, NotBegun>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let row = match sale_for(&transaction, sale, asked).await? {
                Ok(row) => row,
                Err(answer) => return Ok(answer),
            };
            let args = serde_json::json!(change).to_string();
            let items = item::Entity::find()
                .filter(item::Column::SaleId.eq(sale.as_str()))
                .order_by_asc(item::Column::Sku)
                .all(&transaction)
                .await?;
            let version = row.rules_version;
            let row = read_sale(row, items)?;
            if row.state.has_ended() {
                return Ok(Err(NotBegun::Ended));
            }
            let amended = match change.apply(&row.sale, now) {
                Ok(amended) => amended,
                Err(invalid) => return Ok(Err(NotBegun::Invalid(invalid))),
            };
            let mut terms = terms_of(&amended);
            terms.rules_version = Set(version + 1);
            sale::Entity::update_many()
                .set(terms)
                .filter(sale::Column::Id.eq(sale.as_str()))
                .exec(&transaction)
                .await?;
            for (sku, limit) in &change.item_limits {
                let limit = limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
                item::Entity::update_many()
                    .col_expr(item::Column::LimitPerUser, Expr::val(limit))
                    .filter(item::Column::SaleId.eq(sale.as_str()))
                    .filter(item::Column::Sku.eq(sku.as_str()))
                    .exec(&transaction)
                    .await?;
            }
            let begun = insert_act(&transaction, new_act(sale, "change", args, asked, None)).await?;
            transaction.commit().await?;
            Ok(Ok(begun))
        })
        .await
    }
}
