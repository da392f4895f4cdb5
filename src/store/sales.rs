//! Sales and their items.

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    SqlErr,
};

use super::entities::{item, sale};
use super::journal::{Touched, log};
use super::{Store, StoreError};
use crate::domain::{Item, Millis, Number, Sale, SaleId, SaleState, Sku, Terms, Window};

/// The epoch of a sale whose gate was never rebuilt.
const FIRST_EPOCH: i64 = 1;

#[derive(Debug, Clone)]
pub struct SaleRow {
    pub sale: Sale,
    pub state: SaleState,
    /// The highest number of the gate at the last change of state.
    pub number: Number,
    /// The highest number of the gate when it was told last of units that came back.
    pub witnessed: Number,
    /// Of the terms: window, limits, rules.
    pub terms_version: i64,
    /// Of its state or its terms, by the clock of the host that made the change.
    pub changed_at: Millis,
    pub created_at: Millis,
    pub items: Vec<ItemRow>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRow {
    pub sku: Sku,
    pub stock: i64,
    /// Units of live orders.
    pub sold: i64,
    /// Of the last change of its stock.
    pub version: i64,
}

impl Store {
    /// Creates a draft. The sale must pass [`Sale::check`].
    pub async fn create_sale(&self, sale: &Sale) -> Result<(), StoreError> {
        let now = Millis::now().0;
        let row = sale::ActiveModel {
            id: Set(sale.id.to_string()),
            state: Set(SaleState::Draft.as_str().into()),
            rules_version: Set(1),
            told_epoch: Set(0),
            told_seq: Set(0),
            epoch: Set(FIRST_EPOCH),
            seq: Set(0),
            created_at_ms: Set(now),
            updated_at_ms: Set(now),
            ..terms_of(sale)
        };
        let items = sale.items.iter().map(|item| item::ActiveModel {
            sale_id: Set(sale.id.to_string()),
            sku: Set(item.sku.to_string()),
            stock: Set(item.stock),
            sold: Set(0),
            version: Set(1),
            limit_per_user: Set(item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))),
        });
        self.within(async {
            let transaction = self.begin().await?;
            let inserted = sale::Entity::insert(row).exec_without_returning(&transaction).await;
            if let Err(error) = &inserted
                && matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_)))
            {
                return Err(StoreError::Exists("a sale with this id"));
            }
            inserted?;
            item::Entity::insert_many(items).exec_without_returning(&transaction).await?;
            log(&transaction, sale.id.as_str(), [Touched::Sale]).await?;
            transaction.commit().await?;
            Ok(())
        })
        .await
    }

    pub async fn sale(&self, id: &SaleId) -> Result<Option<SaleRow>, StoreError> {
        self.within(read_sale_by(&self.db, id)).await
    }

    /// All sales, the newest first.
    pub async fn sales(&self) -> Result<Vec<SaleRow>, StoreError> {
        self.within(async {
            let rows = sale::Entity::find()
                .order_by_desc(sale::Column::CreatedAtMs)
                .order_by_asc(sale::Column::Id)
                .all(&self.db)
                .await?;
            let mut items = item::Entity::find().order_by_asc(item::Column::Sku).all(&self.db).await?;
            rows.into_iter()
                .map(|row| {
                    let (own, others) = items.drain(..).partition(|item| item.sale_id == row.id);
                    items = others;
                    read_sale(row, own)
                })
                .collect()
        })
        .await
    }

    /// Writes the state of a sale with the gate's number of that change. A number lower than the
    /// one written changes nothing: a later change was faster. Nothing leaves `archived`: whoever was
    /// told by the gate just before it was unloaded comes too late.
    pub async fn set_sale_state(
        &self,
        id: &SaleId,
        state: SaleState,
        number: Number,
    ) -> Result<(), StoreError> {
        let older = sea_orm::Condition::any().add(sale::Column::Epoch.lt(number.epoch)).add(
            sea_orm::Condition::all()
                .add(sale::Column::Epoch.eq(number.epoch))
                .add(sale::Column::Seq.lte(number.seq)),
        );
        let update = sale::Entity::update_many()
            .set(sale::ActiveModel {
                state: Set(state.as_str().into()),
                epoch: Set(number.epoch),
                seq: Set(number.seq),
                updated_at_ms: Set(Millis::now().0),
                ..Default::default()
            })
            .filter(sale::Column::Id.eq(id.as_str()))
            .filter(sale::Column::State.ne(SaleState::Archived.as_str()))
            .filter(older);
        self.within(async {
            let transaction = self.begin().await?;
            update.exec(&transaction).await?;
            log(&transaction, id.as_str(), [Touched::Sale]).await?;
            transaction.commit().await?;
            Ok(())
        })
        .await
    }
}

pub(super) async fn read_sale_by(
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
pub(super) fn terms_of(sale: &Sale) -> sale::ActiveModel {
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

pub(super) fn read_sale(row: sale::Model, items: Vec<item::Model>) -> Result<SaleRow, StoreError> {
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
    Ok(SaleRow {
        sale,
        state,
        number: Number { epoch: row.epoch, seq: row.seq },
        witnessed: Number { epoch: row.told_epoch, seq: row.told_seq },
        terms_version: row.rules_version,
        changed_at: Millis(row.updated_at_ms),
        created_at: Millis(row.created_at_ms),
        items: read,
    })
}
