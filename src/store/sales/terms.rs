//! Changes of a sale's terms: the database first, the gate after.

use sea_orm::sea_query::Expr;
use sea_orm::{ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _};

use super::acts::{Begin, NotBegun, insert_act, lock_sale, new_act};
use super::read::{read_sale, terms_of};
use crate::domain::{ActRequest, Millis, SaleId, TermsChange};
use crate::store::entities::{item, sale};
use crate::store::error::StoreError;
use crate::store::handle::Store;

impl Store {
    /// Gives a sale new terms, as their next version. On return they are durable with a pending act; the gate gets
    /// them afterwards.
    pub async fn begin_terms_change(
        &self,
        sale: &SaleId,
        change: &TermsChange,
        now: Millis,
        asked: &ActRequest,
    ) -> Result<Begin, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let row = match lock_sale(&transaction, sale, asked).await? {
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
            let changed = match change.apply(&row.sale, now) {
                Ok(changed) => changed,
                Err(invalid) => return Ok(Err(NotBegun::Invalid(invalid))),
            };
            let mut terms = terms_of(&changed);
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
            self.commit(transaction, &[sale.as_str()]).await?;
            Ok(Ok(begun))
        })
        .await
    }
}
