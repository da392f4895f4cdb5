//! Reading operators' acts.

use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, Select,
};

use super::acts::{Restock, SaleAct, read_act};
use crate::domain::{Millis, SaleId};
use crate::store::entities::sale_act;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::states::ActState;

impl Store {
    /// The acts on a sale, newest first.
    pub async fn acts(&self, sale: &SaleId, limit: u64) -> Result<Vec<SaleAct>, StoreError> {
        self.within(async {
            let rows = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .order_by_desc(sale_act::Column::AtMs)
                .order_by_desc(sale_act::Column::Key)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_act).collect()
        })
        .await
    }

    /// Every change of stock of a sale's items that was not refused, by version.
    pub async fn restocks(&self, sale: &SaleId) -> Result<Vec<Restock>, StoreError> {
        let changes = changes_of_stock(sale)
            .filter(sale_act::Column::State.ne(ActState::Refused.as_str()))
            .order_by_asc(sale_act::Column::ItemVersion);
        self.read_restocks(changes).await
    }

    /// Changes of a sale's stock that have not ended.
    pub async fn pending_restocks(&self, sale: &SaleId) -> Result<Vec<Restock>, StoreError> {
        let pending = changes_of_stock(sale).filter(sale_act::Column::State.eq(ActState::Pending.as_str()));
        self.read_restocks(pending).await
    }

    async fn read_restocks(&self, changes: Select<sale_act::Entity>) -> Result<Vec<Restock>, StoreError> {
        self.within(async {
            let rows = changes.all(&self.db).await?;
            rows.into_iter().filter_map(|row| read_act(row).map(|act| act.restock).transpose()).collect()
        })
        .await
    }

    /// Whether the sale's orders were deleted by a purge.
    pub async fn was_purged(&self, sale: &SaleId) -> Result<bool, StoreError> {
        self.within(async {
            let purge = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .filter(sale_act::Column::Kind.eq("purge"))
                .filter(sale_act::Column::State.eq(ActState::Done.as_str()))
                .one(&self.db);
            Ok(purge.await?.is_some())
        })
        .await
    }

    /// Pending acts on stock and terms that began after `after`, oldest first: changes that the database has and the
    /// gate may lack.
    pub async fn unfinished_acts(&self, after: Millis, limit: u64) -> Result<Vec<SaleAct>, StoreError> {
        self.within(async {
            let rows = sale_act::Entity::find()
                .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                .filter(sale_act::Column::Kind.is_in(["restock", "change"]))
                .filter(sale_act::Column::AtMs.gt(after.0))
                .order_by_asc(sale_act::Column::AtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_act).collect()
        })
        .await
    }
}

fn changes_of_stock(sale: &SaleId) -> Select<sale_act::Entity> {
    sale_act::Entity::find()
        .filter(sale_act::Column::SaleId.eq(sale.as_str()))
        .filter(sale_act::Column::ItemVersion.is_not_null())
}
