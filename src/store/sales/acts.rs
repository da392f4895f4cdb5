//! Operators' acts on a sale. Each has a row that is written before the act is done, so that an act that died halfway
//! is known, and an act that is repeated with the same key is done once.

use sea_orm::{ActiveValue::Set, DatabaseTransaction, EntityTrait as _, QuerySelect as _};

use crate::domain::{ActEntry, ActRequest, Invalid, Millis, SaleId, Sku};
use crate::store::clock;
use crate::store::entities::{sale, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::states::ActState;

/// One act on a sale.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct SaleAct {
    /// The sale.
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    /// The idempotency key of the request, or one that was made for the act.
    pub key: String,
    /// `open`, `pause`, `resume`, `close`, `restock`, `change`, `archive`, `purge` or `rebuild`.
    pub kind: String,
    /// The arguments, as JSON.
    pub args: String,
    /// The change of stock, if the act is one.
    #[serde(skip)]
    pub restock: Option<Restock>,
    /// Who requested it.
    pub by: String,
    /// Why, in the requester's words.
    pub reason: Option<String>,
    /// How far it has come.
    pub state: ActState,
    /// The outcome in words, once it has ended.
    pub result: Option<String>,
    /// When it began, by the database's clock.
    pub at: Millis,
}

impl SaleAct {
    /// The act as the order log has it, without the time when it ended.
    pub fn entry(&self) -> ActEntry {
        let restock = self.restock.as_ref();
        ActEntry {
            sale_id: self.sale.clone(),
            key: self.key.clone(),
            act: self.kind.clone(),
            args: self.args.clone(),
            sku: restock.map(|restock| restock.sku.clone()),
            units: restock.map(|restock| restock.units),
            item_version: restock.map(|restock| restock.version),
            by: self.by.clone(),
            reason: self.reason.clone(),
            state: self.state.as_str().into(),
            result: self.result.clone(),
            at: self.at,
            ended_at: None,
        }
    }
}

/// A change of an item's stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restock {
    /// The item.
    pub sku: Sku,
    /// Units added; negative if taken away.
    pub units: i64,
    /// The version of the item's stock after the change.
    pub version: i64,
}

/// An act that has begun.
#[derive(Debug, Clone)]
pub enum BegunAct {
    /// Written now, as pending.
    New(SaleAct),
    /// An act with this key already existed.
    Existing(SaleAct),
}

/// Why an act on the stock or the terms could not begin. Nothing was written.
#[derive(Debug, Clone)]
pub enum NotBegun {
    /// There is no such sale.
    NoSale,
    /// The sale has no such item.
    NoItem,
    /// An earlier change of the same item has not ended.
    Unfinished(Box<SaleAct>),
    /// An argument is out of range.
    Invalid(Invalid),
    /// The sale does not allow it, for this reason.
    Refused(String),
    /// The sale has ended.
    Ended,
}

/// An act that has begun, or why it has not.
pub(in crate::store) type Begin = Result<BegunAct, NotBegun>;

impl Store {
    /// Begins an act that the gate does first: on return its row is durable, as pending. A repeat with the same key
    /// returns [`BegunAct::Existing`].
    pub async fn begin_act(
        &self,
        sale: &SaleId,
        kind: &str,
        args: String,
        asked: &ActRequest,
    ) -> Result<Begin, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            if let Err(answer) = lock_sale(&transaction, sale, asked).await? {
                return Ok(answer);
            }
            let begun = insert_act(&transaction, new_act(sale, kind, args, asked, None)).await?;
            self.commit(transaction, &[sale.as_str()]).await?;
            Ok(Ok(begun))
        })
        .await
    }
}

/// A new act, as pending. Its time is set when it is inserted.
pub(in crate::store) fn new_act(
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
        at: Millis(0),
    }
}

/// Inserts an act, with the time by the database's clock: that of a host may be wrong, and the time says which of two
/// acts came last. The sale's row must be locked, as by [`lock_sale`].
pub(in crate::store) async fn insert_act(
    transaction: &DatabaseTransaction,
    act: SaleAct,
) -> Result<BegunAct, StoreError> {
    let act = SaleAct { at: clock::now(transaction).await?, ..act };
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

/// Locks the sale's row, so that of two acts with one key the second finds the first. `Err` is the answer if the sale
/// does not exist, or the act already does.
pub(in crate::store) async fn lock_sale(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    asked: &ActRequest,
) -> Result<Result<sale::Model, Begin>, StoreError> {
    let row = sale::Entity::find_by_id(sale.as_str()).lock_exclusive().one(transaction).await?;
    let Some(row) = row else { return Ok(Err(Err(NotBegun::NoSale))) };
    let Some(key) = &asked.key else { return Ok(Ok(row)) };
    let key = (sale.to_string(), key.to_string());
    Ok(match sale_act::Entity::find_by_id(key).one(transaction).await? {
        Some(before) => Err(Ok(BegunAct::Existing(read_act(before)?))),
        None => Ok(row),
    })
}

/// An act's row as a domain value.
pub(in crate::store) fn read_act(row: sale_act::Model) -> Result<SaleAct, StoreError> {
    let unreadable = || StoreError::unreadable("an act", &row);
    let restock = match (&row.sku, row.units, row.item_version) {
        (Some(sku), Some(units), Some(version)) => {
            Some(Restock { sku: sku.parse().map_err(|_| unreadable())?, units, version })
        }
        _ => None,
    };
    let state = ActState::ALL.into_iter().find(|state| state.as_str() == row.state).ok_or_else(unreadable)?;
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
