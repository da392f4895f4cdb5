//! Which items are locked by other sessions: found without waiting for them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sea_orm::sea_query::{LockBehavior, LockType};
use sea_orm::{ColumnTrait as _, EntityTrait as _, QueryFilter as _, QuerySelect as _};

use super::claim::Claim;
use crate::domain::{SaleId, Sku};
use crate::store::entities::item;
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// Looks after which an item counts as stalled.
const LOOKS: u32 = 6;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// An item of the claims.
type ItemKey<'a> = (&'a SaleId, &'a Sku);

impl Store {
    /// The claimed items that were locked at each of several looks and did not sell a unit meanwhile. Other batches hold
    /// an item for some milliseconds; where many of them take turns, it is always locked, and sells.
    pub(super) async fn stalled_items<'a>(
        &self,
        claims: &'a [Claim],
    ) -> Result<HashSet<ItemKey<'a>>, StoreError> {
        let mut stalled = self.locked_items(claims).await?;
        for _ in 1..LOOKS {
            if stalled.is_empty() {
                break;
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let now = self.locked_items(claims).await?;
            stalled.retain(|item, sold| now.get(item) == Some(sold));
        }
        Ok(stalled.into_keys().collect())
    }

    /// The claimed items whose rows another transaction holds at this moment, with their committed `sold`. An item
    /// without a row is not one of them: its orders are refused.
    pub(super) async fn locked_items<'a>(
        &self,
        claims: &'a [Claim],
    ) -> Result<HashMap<ItemKey<'a>, i64>, StoreError> {
        self.within(async {
            let items: HashSet<ItemKey> =
                claims.iter().map(|claim| (&claim.order.sale, &claim.order.sku)).collect();
            let of_sales = item::Entity::find()
                .select_only()
                .columns([item::Column::SaleId, item::Column::Sku, item::Column::Sold])
                .filter(item::Column::SaleId.is_in(items.iter().map(|(sale, _)| sale.as_str())));
            let transaction = self.begin().await?;
            let free = of_sales.clone().lock_with_behavior(LockType::Update, LockBehavior::SkipLocked);
            let free: Vec<(String, String, i64)> = free.into_tuple().all(&transaction).await?;
            let free = by_key(&free);
            let mut locked = HashMap::new();
            if items.iter().any(|(sale, sku)| !free.contains_key(&(sale.as_str(), sku.as_str()))) {
                let known: Vec<(String, String, i64)> = of_sales.into_tuple().all(&transaction).await?;
                let known = by_key(&known);
                for item in items {
                    let key = (item.0.as_str(), item.1.as_str());
                    if let (None, Some(sold)) = (free.get(&key), known.get(&key)) {
                        locked.insert(item, *sold);
                    }
                }
            }
            transaction.rollback().await?;
            Ok(locked)
        })
        .await
    }
}

fn by_key(rows: &[(String, String, i64)]) -> HashMap<(&str, &str), i64> {
    rows.iter().map(|(sale, sku, sold)| ((sale.as_str(), sku.as_str()), *sold)).collect()
}
