//! What operators did to a sale: a row per act, written before it is done, so that what died half way
//! is known, and what is asked for again with the same key is done once.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};

use super::entities::{item, sale, sale_act};
use super::journal::{Touched, log};
use super::{Store, StoreError};
use crate::domain::{ActRequest, Invalid, Millis, Number, SaleId, Sku};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActState {
    /// BegunAct. What it has done is not known, or it is still being done.
    Pending,
    Done,
    /// Nothing was changed.
    Refused,
}

impl ActState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }
}

/// One act upon a sale.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SaleAct {
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    pub key: String,
    /// `open`, `pause`, `resume`, `close`, `restock`, `change`, `archive`.
    pub kind: String,
    /// JSON.
    pub args: String,
    #[serde(skip)]
    pub restock: Option<Restock>,
    pub by: String,
    pub reason: Option<String>,
    pub state: ActState,
    pub result: Option<String>,
    pub at: Millis,
}

/// Units added to an item, or taken away below 0, and the item's version afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restock {
    pub sku: Sku,
    pub units: i64,
    pub version: i64,
}

/// What came of beginning an act.
#[derive(Debug, Clone)]
pub enum BegunAct {
    /// Written now, as pending.
    New(SaleAct),
    /// There was one with this key.
    Existing(SaleAct),
}

/// Why an act upon the stock or the terms could not begin; nothing was written.
#[derive(Debug, Clone)]
pub enum NotBegun {
    NoSale,
    NoItem,
    /// An earlier change of the same item has not ended.
    Unfinished(Box<SaleAct>),
    Invalid(Invalid),
    Refused(String),
    Ended,
}

impl Store {
    /// Begins an act that the gate does first.
    pub async fn begin_act(
        &self,
        sale: &SaleId,
        kind: &str,
        args: String,
        asked: &ActRequest,
    ) -> Result<Result<BegunAct, NotBegun>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            if let Err(answer) = sale_for(&transaction, sale, asked).await? {
                return Ok(answer);
            }
            let begun = insert_act(&transaction, new_act(sale, kind, args, asked, None)).await?;
            transaction.commit().await?;
            Ok(Ok(begun))
        })
        .await
    }

    /// Writes how an act ended, and the gate's number afterwards: a Redis that comes back without it is
    /// behind. Where the gate has taken units away, the item's stock is lowered with it; `false` where
    /// the database has sold more than would be left, so that the gate had units which do not exist, and
    /// has them no more. May be repeated; the first end stays.
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
            let mut lowered_too = true;
            if let (Some(number), Some(_)) = (number, &act.restock) {
                let row =
                    sale::Entity::find_by_id(act.sale.as_str()).lock_exclusive().one(&transaction).await?;
                if row.is_some_and(|row| number.epoch < row.epoch) {
                    transaction.rollback().await?;
                    let why = "the gate was rebuilt since it was told of the change: it is told again";
                    return Err(StoreError::Away(why.into()));
                }
            }
            let ended = end(&transaction, act, state, result).await?;
            if ended && state == ActState::Done && STATES.contains(&act.kind.as_str()) {
                supersede(&transaction, act).await?;
            }
            if let Some(number) = number {
                super::returns::record_number(&transaction, &act.sale, number).await?;
            }
            if let Some(restock) = lowers.filter(|_| ended) {
                let lowered = Expr::col(item::Column::Stock).add(restock.units);
                let updated = item::Entity::update_many()
                    .col_expr(item::Column::Stock, lowered.clone())
                    .filter(item::Column::SaleId.eq(act.sale.as_str()))
                    .filter(item::Column::Sku.eq(restock.sku.as_str()))
                    .filter(lowered.gte(Expr::col(item::Column::Sold)))
                    .exec(&transaction)
                    .await?;
                lowered_too = updated.rows_affected > 0;
            }
            log(&transaction, act.sale.as_str(), [Touched::Act(&act.key), Touched::Sale]).await?;
            transaction.commit().await?;
            Ok(lowered_too)
        })
        .await
    }

    /// The acts upon a sale, the newest first.
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

    /// Every change of the stock of a sale's items that was not refused, by version.
    pub async fn restocks(&self, sale: &SaleId) -> Result<Vec<Restock>, StoreError> {
        self.within(async {
            let rows = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .filter(sale_act::Column::ItemVersion.is_not_null())
                .filter(sale_act::Column::State.ne(ActState::Refused.as_str()))
                .order_by_asc(sale_act::Column::ItemVersion)
                .all(&self.db)
                .await?;
            rows.into_iter().filter_map(|row| read_act(row).map(|act| act.restock).transpose()).collect()
        })
        .await
    }

    /// Changes of a sale's stock that have not ended.
    pub async fn pending_restocks(&self, sale: &SaleId) -> Result<Vec<Restock>, StoreError> {
        self.within(async {
            let rows = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .filter(sale_act::Column::ItemVersion.is_not_null())
                .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                .all(&self.db)
                .await?;
            rows.into_iter().filter_map(|row| read_act(row).map(|act| act.restock).transpose()).collect()
        })
        .await
    }

    /// Were the orders of the sale forgotten for good?
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

    /// Acts upon stock and terms that died half way, the oldest first, those after `after`: what the
    /// database has, the gate must get.
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

pub(super) fn new_act(
    sale: &SaleId,
    kind: &str,
    args: String,
    asked: &ActRequest,
    restock: Option<Restock>,
) -> SaleAct {
    let key = match &asked.key {
        Some(key) => key.to_string(),
        None => uuid::Uuid::now_v7().to_string(),
    };
    SaleAct {
        sale: sale.clone(),
        key,
        kind: kind.to_owned(),
        args,
        restock,
        by: asked.by.clone(),
        reason: asked.reason.clone(),
        state: ActState::Pending,
        result: None,
        at: Millis::now(),
    }
}

/// The sale's row must be locked, as [`sale_for`] does.
pub(super) async fn insert_act(
    transaction: &DatabaseTransaction,
    act: SaleAct,
) -> Result<BegunAct, StoreError> {
    let row = sale_act::ActiveModel {
        sale_id: Set(act.sale.to_string()),
        key: Set(act.key.clone()),
        kind: Set(act.kind.clone()),
        args: Set(act.args.clone()),
        sku: Set(act.restock.as_ref().map(|restock| restock.sku.to_string())),
        units: Set(act.restock.as_ref().map(|restock| restock.units)),
        item_version: Set(act.restock.as_ref().map(|restock| restock.version)),
        actor: Set(act.by.clone()),
        reason: Set(act.reason.clone()),
        state: Set(act.state.as_str().to_owned()),
        result: Set(act.result.clone()),
        at_ms: Set(act.at.0),
        ended_at_ms: Set(None),
    };
    sale_act::Entity::insert(row).exec_without_returning(transaction).await?;
    log(transaction, act.sale.as_str(), [Touched::Act(&act.key), Touched::Sale]).await?;
    Ok(BegunAct::New(act))
}

/// The sale's row, locked, so that of two acts with one key the second meets the first; or the answer,
/// where there is no such sale, or an act with this key.
pub(super) async fn sale_for(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    asked: &ActRequest,
) -> Result<Result<sale::Model, Result<BegunAct, NotBegun>>, StoreError> {
    let row = sale::Entity::find_by_id(sale.as_str()).lock_exclusive().one(transaction).await?;
    let Some(row) = row else { return Ok(Err(Err(NotBegun::NoSale))) };
    let Some(key) = &asked.key else { return Ok(Ok(row)) };
    let key = (sale.to_string(), key.to_string());
    Ok(match sale_act::Entity::find_by_id(key).one(transaction).await? {
        Some(before) => Err(Ok(BegunAct::Existing(read_act(before)?))),
        None => Ok(row),
    })
}

/// Acts that move a sale between states; nobody finishes them but whoever asks again.
const STATES: [&str; 7] = ["open", "pause", "resume", "close", "archive", "purge", "rebuild"];

/// What was asked for before and never known to be done matters no more: the sale is in another state.
async fn supersede(transaction: &DatabaseTransaction, act: &SaleAct) -> Result<(), StoreError> {
    let open = sale_act::Entity::find()
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Kind.is_in(STATES))
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
        .filter(sale_act::Column::AtMs.lte(act.at.0))
        .all(transaction)
        .await?;
    let keys: Vec<&str> = open.iter().map(|row| row.key.as_str()).collect();
    if keys.is_empty() {
        return Ok(());
    }
    sale_act::Entity::update_many()
        .col_expr(sale_act::Column::State, Expr::val(ActState::Refused.as_str()))
        .col_expr(sale_act::Column::Result, Expr::val(format!("not known to be done, and then {}", act.kind)))
        .col_expr(sale_act::Column::EndedAtMs, Expr::val(Millis::now().0))
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Key.is_in(keys.iter().copied()))
        .exec(transaction)
        .await?;
    log(transaction, act.sale.as_str(), keys.into_iter().map(Touched::Act)).await
}

/// `true` where it ends now.
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
        .col_expr(sale_act::Column::EndedAtMs, Expr::val(Millis::now().0))
        .filter(sale_act::Column::SaleId.eq(act.sale.as_str()))
        .filter(sale_act::Column::Key.eq(act.key.as_str()))
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
        .exec(transaction)
        .await?;
    Ok(updated.rows_affected == 1)
}

pub(super) fn read_act(row: sale_act::Model) -> Result<SaleAct, StoreError> {
    let unreadable = || StoreError::unreadable("an act", &row);
    let restock = match (&row.sku, row.units, row.item_version) {
        (Some(sku), Some(units), Some(version)) => {
            Some(Restock { sku: sku.parse().map_err(|_| unreadable())?, units, version })
        }
        _ => None,
    };
    let state = [ActState::Pending, ActState::Done, ActState::Refused]
        .into_iter()
        .find(|state| state.as_str() == row.state)
        .ok_or_else(unreadable)?;
    Ok(SaleAct {
        sale: row.sale_id.parse().map_err(|_| unreadable())?,
        restock,
        state,
        key: row.key,
        kind: row.kind,
        args: row.args,
        by: row.actor,
        reason: row.reason,
        result: row.result,
        at: Millis(row.at_ms),
    })
}
