//! All orders of a sale, a few thousand at a time. A page has whole users, because the index that begins with sale and
//! user finds it without a sort, however many orders the sale or the table has.

use sea_orm::{
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
    Select,
};

use super::read::{OrderRow, read_order};
use crate::domain::SaleId;
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// Orders in a page that are read one by one. The last user of a page may have more.
const PAGE: u64 = 2_000;

/// Some users of a sale, in the order of the database.
#[derive(Debug, Clone)]
pub(super) struct UserRange {
    after: Option<String>,
    up_to: String,
}

impl UserRange {
    /// The query for all orders of these users.
    pub(super) fn orders_of(&self, sale: &SaleId) -> Select<order::Entity> {
        users_after(sale, self.after.as_deref()).filter(order::Column::UserId.lte(self.up_to.as_str()))
    }
}

/// Goes through the users of a sale, range by range. A user whose first order is inserted meanwhile may be left out.
pub(super) struct UserRanges<'a> {
    sale: &'a SaleId,
    /// Orders in a range.
    orders: u64,
    after: Option<String>,
    /// The last user when the reading began; `None` before that.
    last: Option<String>,
}

impl<'a> UserRanges<'a> {
    /// Ranges with at least `orders` orders each.
    pub(super) fn new(sale: &'a SaleId, orders: u64) -> Self {
        Self { sale, orders, after: None, last: None }
    }

    /// The next range; `None` at the end. It is returned again until it is [`UserRanges::finish`]ed.
    pub(super) async fn next(
        &mut self,
        connection: &impl ConnectionTrait,
    ) -> Result<Option<UserRange>, StoreError> {
        let user =
            |query: Select<order::Entity>| query.select_only().column(order::Column::UserId).into_tuple();
        if self.last.is_none() {
            let last = users_after(self.sale, None).order_by_desc(order::Column::UserId).limit(1);
            self.last = user(last).one(connection).await?;
        }
        let Some(last) = self.last.as_deref().filter(|last| self.after.as_deref() != Some(last)) else {
            return Ok(None);
        };
        let boundary = users_after(self.sale, self.after.as_deref())
            .filter(order::Column::UserId.lte(last))
            .order_by_asc(order::Column::UserId)
            .offset(self.orders - 1)
            .limit(1);
        let boundary: Option<String> = user(boundary).one(connection).await?;
        let up_to = boundary.unwrap_or_else(|| last.to_owned());
        Ok(Some(UserRange { after: self.after.clone(), up_to }))
    }

    /// Goes on after this range.
    pub(super) fn finish(&mut self, range: UserRange) {
        self.after = Some(range.up_to);
    }
}

fn users_after(sale: &SaleId, after: Option<&str>) -> Select<order::Entity> {
    let orders = order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()));
    match after {
        Some(after) => orders.filter(order::Column::UserId.gt(after)),
        None => orders,
    }
}

/// Goes through all orders of a sale: see [`Store::order_pages`].
pub struct OrderPages<'a> {
    store: &'a Store,
    ranges: UserRanges<'a>,
}

impl Store {
    /// All orders of a sale, page by page. Each order that has a row when the reading begins is in exactly one page, as
    /// it is when that page is read, together with all other orders of its user.
    pub fn order_pages<'a>(&'a self, sale: &'a SaleId) -> OrderPages<'a> {
        OrderPages { store: self, ranges: UserRanges::new(sale, PAGE) }
    }
}

impl OrderPages<'_> {
    /// The next page, read within the time limit of one query; `None` at the end. After an error the same page can be
    /// read again.
    pub async fn next(&mut self) -> Result<Option<Vec<OrderRow>>, StoreError> {
        let Self { store, ranges } = self;
        store
            .within(async {
                let Some(range) = ranges.next(&store.db).await? else { return Ok(None) };
                let rows = range.orders_of(ranges.sale).all(&store.db).await?;
                let rows = rows.into_iter().map(read_order).collect::<Result<_, _>>()?;
                ranges.finish(range);
                Ok(Some(rows))
            })
            .await
    }
}
