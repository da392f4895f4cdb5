//! Reading sales and their items.

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use crate::domain::{Item, Millis, Number, Sale, SaleId, SaleState, Sku, Terms, Window};
use crate::store::entities::{item, sale};
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// A sale as the database has it.
#[derive(Debug, Clone)]
pub struct SaleRow {
    /// Its name, window, limits, terms and items.
    pub sale: Sale,
    /// Its state after the last change that was recorded.
    pub state: SaleState,
    /// The highest number of the gate at the last change of state.
    pub number: Number,
    /// The highest number of the gate after a change that leaves no row with a number: a return or an act.
    pub witnessed: Number,
    /// The version of its window, limits and other terms.
    pub terms_version: i64,
    /// When its state or its terms changed last, by the clock of the host that changed them.
    pub changed_at: Millis,
    /// When its draft was created.
    pub created_at: Millis,
    /// Its items, by SKU.
    pub items: Vec<ItemRow>,
}

/// The counters of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRow {
    /// Its name within the sale.
    pub sku: Sku,
    /// Units for sale in total.
    pub stock: i64,
    /// Units of live orders.
    pub sold: i64,
    /// The version of its stock.
    pub version: i64,
}

impl Store {
    /// A sale; `None` if there is none with this id.
    pub async fn sale(&self, id: &SaleId) -> Result<Option<SaleRow>, StoreError> {
        self.within(read_sale_by(&self.db, id)).await
    }

    /// The ids of all sales.
    pub async fn sale_ids(&self) -> Result<Vec<SaleId>, StoreError> {
        self.within(async {
            let ids: Vec<String> = sale::Entity::find()
                .select_only()
                .column(sale::Column::Id)
                .into_tuple()
                .all(&self.db)
                .await?;
            ids.into_iter()
                .map(|id| id.parse().map_err(|_| StoreError::unreadable("a sale id", &id)))
                .collect()
        })
        .await
    }

    /// All sales, newest first.
    pub async fn sales(&self) -> Result<Vec<SaleRow>, StoreError> {
        self.read_sales().await?.into_iter().collect()
    }

    /// The sales that this build can read, newest first, and how many it cannot: for work that one sale must not keep from
    /// all others. What cannot be read is logged.
    pub async fn readable_sales(&self) -> Result<(Vec<SaleRow>, usize), StoreError> {
        let (mut readable, mut unreadable) = (Vec::new(), 0);
        for read in self.read_sales().await? {
            match read {
                Ok(row) => readable.push(row),
                Err(error) => {
                    tracing::error!(%error, "a sale is left out");
                    unreadable += 1;
                }
            }
        }
        Ok((readable, unreadable))
    }

    async fn read_sales(&self) -> Result<Vec<Result<SaleRow, StoreError>>, StoreError> {
        self.within(async {
            let rows = sale::Entity::find()
                .order_by_desc(sale::Column::CreatedAtMs)
                .order_by_asc(sale::Column::Id)
                .all(&self.db)
                .await?;
            let mut items = item::Entity::find().order_by_asc(item::Column::Sku).all(&self.db).await?;
            let read = rows.into_iter().map(|row| {
                let (own, others) = items.drain(..).partition(|item| item.sale_id == row.id);
                items = others;
                read_sale(row, own)
            });
            Ok(read.collect())
        })
        .await
    }

    /// How far each sale has come, also one whose terms or items this build cannot read. A row whose id is none is left
    /// out: it is no sale that anybody can name.
    pub async fn sale_numbers(&self) -> Result<Vec<SaleNumber>, StoreError> {
        self.within(async {
            let rows = sale::Entity::find().all(&self.db).await?;
            let numbers = rows.into_iter().filter_map(|row| {
                let (number, witnessed) = numbers_of(&row);
                Some(SaleNumber {
                    id: row.id.parse().ok()?,
                    state: row.state.parse().ok(),
                    number: number.max(witnessed),
                    created_at: Millis(row.created_at_ms),
                })
            });
            Ok(numbers.collect())
        })
        .await
    }
}

/// How far a sale has come, as its row has it.
#[derive(Debug, Clone)]
pub struct SaleNumber {
    /// The sale.
    pub id: SaleId,
    /// Its state; `None` for one that this build does not know.
    pub state: Option<SaleState>,
    /// The highest number of the gate that the row has.
    pub number: Number,
    /// When its draft was created.
    pub created_at: Millis,
}

/// The number at the last change of state, and the number after the last change that leaves no row with one.
fn numbers_of(row: &sale::Model) -> (Number, Number) {
    (Number { epoch: row.epoch, seq: row.seq }, Number { epoch: row.told_epoch, seq: row.told_seq })
}

/// A sale, read on a connection or in a transaction.
pub(in crate::store) async fn read_sale_by(
    connection: &impl ConnectionTrait,
    id: &SaleId,
) -> Result<Option<SaleRow>, StoreError> {
    let Some(row) = sale::Entity::find_by_id(id.as_str()).one(connection).await? else { return Ok(None) };
    let items = item::Entity::find()
        .filter(item::Column::SaleId.eq(id.as_str()))
        .order_by_asc(item::Column::Sku)
        .all(connection)
        .await?;
    read_sale(row, items).map(Some)
}

/// The columns of a sale's terms.
pub(in crate::store) fn terms_of(sale: &Sale) -> sale::ActiveModel {
    let terms = &sale.terms;
    let seconds = |seconds: Option<u32>| seconds.map(|seconds| i32::try_from(seconds).unwrap_or(i32::MAX));
    sale::ActiveModel {
        name: Set(sale.name.clone()),
        opens_at_ms: Set(sale.window.opens_at.0),
        closes_at_ms: Set(sale.window.closes_at.map(|at| at.0)),
        limit_per_user: Set(i32::try_from(sale.limit_per_user).unwrap_or(i32::MAX)),
        pay_within_s: Set(seconds(terms.pay_within_s)),
        rebuy: Set(terms.rebuy),
        late_payment: Set(terms.late_payment.as_str().into()),
        user_rate: Set(terms.user_rate.map(|rate| rate.to_string())),
        sale_rate: Set(terms.sale_rate.map(|rate| rate.to_string())),
        message: Set(terms.message.clone()),
        retry_after_s: Set(seconds(terms.retry_after_s)),
        updated_at_ms: Set(Millis::now().0),
        ..Default::default()
    }
}

/// A sale's row and its items' rows as domain values.
pub(in crate::store) fn read_sale(row: sale::Model, items: Vec<item::Model>) -> Result<SaleRow, StoreError> {
    let unreadable = |_| StoreError::unreadable("a sale", &row);
    let (mut read, mut sold) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for item in items {
        let unreadable = || StoreError::unreadable("an item", &item);
        let sku: Sku = item.sku.parse().map_err(|_| unreadable())?;
        let limit_per_user = item.limit_per_user.map(u32::try_from).transpose().map_err(|_| unreadable())?;
        sold.push(Item { sku: sku.clone(), stock: item.stock, limit_per_user });
        read.push(ItemRow { sku, stock: item.stock, sold: item.sold, version: item.version });
    }
    let seconds = |seconds: Option<i32>| {
        seconds.map(u32::try_from).transpose().map_err(|_| StoreError::unreadable("a sale", &row))
    };
    let rate = |rate: &Option<String>| rate.as_deref().map(str::parse).transpose().map_err(unreadable);
    let terms = Terms {
        pay_within_s: seconds(row.pay_within_s)?,
        rebuy: row.rebuy,
        late_payment: row.late_payment.parse().map_err(unreadable)?,
        user_rate: rate(&row.user_rate)?,
        sale_rate: rate(&row.sale_rate)?,
        message: row.message.clone(),
        retry_after_s: seconds(row.retry_after_s)?,
    };
    let sale = Sale {
        id: row.id.parse().map_err(unreadable)?,
        name: row.name.clone(),
        window: Window { opens_at: Millis(row.opens_at_ms), closes_at: row.closes_at_ms.map(Millis) },
        limit_per_user: u32::try_from(row.limit_per_user)
            .map_err(|_| StoreError::unreadable("a sale", &row))?,
        terms,
        items: sold,
    };
    let state = row.state.parse().map_err(unreadable)?;
    let (number, witnessed) = numbers_of(&row);
    Ok(SaleRow {
        sale,
        state,
        number,
        witnessed,
        terms_version: row.rules_version,
        changed_at: Millis(row.updated_at_ms),
        created_at: Millis(row.created_at_ms),
        items: read,
    })
}
