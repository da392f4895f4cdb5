//! Orders from before a rebuild of their sale's gate.

use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, Select,
};

use super::read::read_order;
use crate::domain::{Millis, Order, SaleId};
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// Orders, wanted or not, that one query goes through.
const PAGE: u64 = 5_000;

/// Orders that were accepted before an epoch of their sale's gate.
#[derive(Debug, Clone, Copy)]
pub struct OlderEpoch {
    /// The epoch: orders of lower epochs count, and orders without a number.
    pub epoch: i64,
    /// Only rows inserted at this time or later.
    pub recorded_since: Millis,
}

/// Goes through orders from before an epoch: see [`Store::live_orders_before`]. It follows the index by epoch and
/// number, one epoch after the other, so that no page needs a sort.
pub struct OlderOrders<'a> {
    store: &'a Store,
    sale: &'a SaleId,
    older: OlderEpoch,
    next: Step,
}

#[derive(Clone, Copy)]
enum Step {
    /// Orders without a number: another order holds it.
    Unnumbered,
    /// The orders of this epoch, after this number.
    Epoch(i64, i64),
    Done,
}

impl Store {
    /// A sale's live orders from before an epoch, page by page.
    pub fn live_orders_before<'a>(&'a self, sale: &'a SaleId, older: OlderEpoch) -> OlderOrders<'a> {
        OlderOrders { store: self, sale, older, next: Step::Unnumbered }
    }
}

impl OlderOrders<'_> {
    /// The next page, perhaps empty, read within the time limit of one query; `None` at the end. After an error the
    /// same page can be read again.
    pub async fn next(&mut self) -> Result<Option<Vec<Order>>, StoreError> {
        let (page, next) = match self.next {
            Step::Unnumbered => {
                let page = self.orders().filter(order::Column::Epoch.is_null());
                (page, self.store.within(self.epoch_after(i64::MIN)).await?)
            }
            Step::Epoch(epoch, seq) => {
                let after =
                    self.orders().filter(order::Column::Epoch.eq(epoch)).filter(order::Column::Seq.gt(seq));
                match self.store.within(self.boundary(after.clone())).await? {
                    Some(last) => (after.filter(order::Column::Seq.lte(last)), Step::Epoch(epoch, last)),
                    None => (after, self.store.within(self.epoch_after(epoch)).await?),
                }
            }
            Step::Done => return Ok(None),
        };
        let wanted = page
            .filter(order::Column::LiveKey.is_not_null())
            .filter(order::Column::RecordedAtMs.gte(self.older.recorded_since.0));
        let orders = async {
            let rows = wanted.all(&self.store.db).await?;
            rows.into_iter().map(|row| read_order(row).map(|row| row.order)).collect()
        };
        let orders = self.store.within(orders).await?;
        self.next = next;
        Ok(Some(orders))
    }

    fn orders(&self) -> Select<order::Entity> {
        order::Entity::find().filter(order::Column::SaleId.eq(self.sale.as_str()))
    }

    /// The number at the end of a page that begins here; `None` for the last page.
    async fn boundary(&self, orders: Select<order::Entity>) -> Result<Option<i64>, StoreError> {
        let boundary = orders
            .select_only()
            .column(order::Column::Seq)
            .order_by_asc(order::Column::Seq)
            .offset(PAGE - 1)
            .limit(1);
        Ok(boundary.into_tuple().one(&self.store.db).await?)
    }

    /// The next epoch that has orders.
    async fn epoch_after(&self, epoch: i64) -> Result<Step, StoreError> {
        let next = self
            .orders()
            .filter(order::Column::Epoch.gt(epoch))
            .filter(order::Column::Epoch.lt(self.older.epoch))
            .select_only()
            .column(order::Column::Epoch)
            .order_by_asc(order::Column::Epoch)
            .limit(1);
        let next: Option<i64> = next.into_tuple().one(&self.store.db).await?;
        Ok(next.map_or(Step::Done, |epoch| Step::Epoch(epoch, i64::MIN)))
    }
}
