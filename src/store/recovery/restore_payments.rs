//! Restoring payment events from their entries, many in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait as _,
    QueryFilter as _, QuerySelect as _, Select, SqlErr,
};

use super::write_mode::WriteMode;
use crate::domain::{OrderId, PaymentEntry};
use crate::store::entities::payment_event;
use crate::store::error::StoreError;
use crate::store::halves::Halves;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::many::{OnExisting, insert_many, is_one_of};
use crate::store::states::PaymentState;

/// What became of a batch of payment events.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RestoredPayments {
    /// Events that were unknown, or whose rows were older.
    pub changed: u64,
    /// Events that the database refused, each with the reason. They were not written.
    pub refused: Vec<(PaymentEntry, String)>,
}

/// Events by provider and id.
type Events<'a> = BTreeMap<(&'a str, &'a str), &'a PaymentEntry>;

impl Store {
    /// Restores payment events. An event that has ended never becomes pending again, whatever the clocks of its writers
    /// say. On `Ok` all of them are durable but those that the database refused. All go into one transaction, which is
    /// halved if the database refuses one. May be repeated.
    pub async fn restore_payments(
        &self,
        entries: &[PaymentEntry],
        writing: WriteMode,
    ) -> Result<RestoredPayments, StoreError> {
        let mut restored = RestoredPayments::default();
        let mut pending = Halves::of(entries);
        while let Some(entries) = pending.next_part() {
            match self.within(self.try_restore_payments(entries, writing)).await {
                Ok(changed) => restored.changed += changed,
                Err(StoreError::Broken(why)) => match entries {
                    [entry] => restored.refused.push((entry.clone(), why)),
                    _ => pending.split(entries),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(restored)
    }

    async fn try_restore_payments(
        &self,
        entries: &[PaymentEntry],
        writing: WriteMode,
    ) -> Result<u64, StoreError> {
        let mut events = Events::new();
        for entry in entries {
            let known = events.entry((entry.provider.as_str(), entry.event_id.as_str())).or_insert(entry);
            if is_newer(&entry.state, entry.updated_at.0, &known.state, known.updated_at.0) {
                *known = entry;
            }
        }
        if writing == WriteMode::DryRun {
            let rows = query(&self.db, &events).all(&self.db).await?;
            drop_restored(&mut events, &rows);
            return Ok(events.len() as u64);
        }
        let transaction = self.begin_restoring().await?;
        let changed = write(&transaction, &mut events).await?;
        if changed == 0 {
            transaction.rollback().await?;
            return Ok(0);
        }
        let mut sales: Vec<&str> = events.values().map(|entry| entry.sale_id.as_str()).collect();
        sales.sort_unstable();
        sales.dedup();
        if writing == WriteMode::RowsAndLog {
            for sale in &sales {
                let of_sale = events.values().filter(|entry| entry.sale_id.as_str() == *sale);
                let touched = of_sale
                    .map(|entry| Touched::Payment { provider: &entry.provider, event_id: &entry.event_id });
                log(&transaction, sale, touched).await?;
            }
        }
        self.commit_restored(&|| true, transaction, &sales).await?;
        Ok(changed)
    }
}

/// The same as `is_newer`, of an event that is written and its row.
macro_rules! where_newer {
    () => {
        "(CASE payment_events.state WHEN 'pending' THEN 0 WHEN 'refunded' THEN 2 ELSE 1 END, \
          payment_events.updated_at_ms) \
         < (CASE excluded.state WHEN 'pending' THEN 0 WHEN 'refunded' THEN 2 ELSE 1 END, excluded.updated_at_ms)"
    };
}

/// Writes the events that are unknown or newer than their rows, and returns how many those are.
async fn write(transaction: &DatabaseTransaction, events: &mut Events<'_>) -> Result<u64, StoreError> {
    match transaction.get_database_backend() {
        DbBackend::MySql => write_locked(transaction, events).await,
        _ => upsert_newer(transaction, events).await,
    }
}

/// In one statement, which also judges: PostgreSQL scans a table that was not analysed yet for a list of keys.
async fn upsert_newer(transaction: &DatabaseTransaction, events: &Events<'_>) -> Result<u64, StoreError> {
    const WHERE: &str = where_newer!();
    const POSTGRES: &str = concat!(
        "(provider, event_id) DO UPDATE SET kind = excluded.kind, sale_id = excluded.sale_id, \
         order_id = excluded.order_id, user_id = excluded.user_id, state = excluded.state, \
         new_order_id = excluded.new_order_id, detail = excluded.detail, \
         received_at_ms = excluded.received_at_ms, due_at_ms = excluded.due_at_ms, \
         updated_at_ms = excluded.updated_at_ms WHERE ",
        where_newer!()
    );
    let mut conflict = overwrite();
    conflict.action_and_where(Expr::cust(WHERE));
    let rows = events.values().map(|entry| row(entry)).collect();
    insert_many(transaction, rows, &OnExisting { conflict, postgres: POSTGRES }).await
}

/// MySQL allows no condition on an upsert, so the rows are locked first.
async fn write_locked(transaction: &DatabaseTransaction, events: &mut Events<'_>) -> Result<u64, StoreError> {
    let rows = query(transaction, events).lock_exclusive().all(transaction).await?;
    drop_restored(events, &rows);
    let known: BTreeSet<(&str, &str)> =
        rows.iter().map(|row| (row.provider.as_str(), row.event_id.as_str())).collect();
    let (older, new): (Vec<_>, Vec<_>) = events.iter().partition(|(key, _)| known.contains(*key));
    let older = older.into_iter().map(|(_, entry)| row(entry)).collect();
    insert_many(transaction, older, &OnExisting { conflict: overwrite(), postgres: "" }).await?;
    let new: Vec<_> = new.into_iter().map(|(_, entry)| row(entry)).collect();
    if !new.is_empty() {
        let inserted = payment_event::Entity::insert_many(new).exec_without_returning(transaction).await;
        inserted.map_err(|error| match error.sql_err() {
            Some(SqlErr::UniqueConstraintViolation(_)) => {
                StoreError::Away("another process is recording the same event".into())
            }
            _ => error.into(),
        })?;
    }
    Ok(events.len() as u64)
}

/// Overwrites an existing row with everything that an entry says.
fn overwrite() -> OnConflict {
    OnConflict::columns([payment_event::Column::Provider, payment_event::Column::EventId])
        .update_columns([
            payment_event::Column::Kind,
            payment_event::Column::SaleId,
            payment_event::Column::OrderId,
            payment_event::Column::UserId,
            payment_event::Column::State,
            payment_event::Column::NewOrderId,
            payment_event::Column::Detail,
            payment_event::Column::ReceivedAtMs,
            payment_event::Column::DueAtMs,
            payment_event::Column::UpdatedAtMs,
        ])
        .to_owned()
}

/// The rows of these events, and perhaps others.
fn query(on: &impl ConnectionTrait, events: &Events<'_>) -> Select<payment_event::Entity> {
    let providers: BTreeSet<&str> = events.keys().map(|(provider, _)| *provider).collect();
    payment_event::Entity::find().filter(payment_event::Column::Provider.is_in(providers)).filter(is_one_of(
        on,
        payment_event::Column::EventId,
        events.keys().map(|(_, id)| *id),
    ))
}

/// Leaves out the events whose rows are as new.
fn drop_restored(events: &mut Events<'_>, rows: &[payment_event::Model]) {
    let rows: BTreeMap<(&str, &str), &payment_event::Model> =
        rows.iter().map(|row| ((row.provider.as_str(), row.event_id.as_str()), row)).collect();
    events.retain(|key, entry| {
        rows.get(key)
            .is_none_or(|row| is_newer(&entry.state, entry.updated_at.0, &row.state, row.updated_at_ms))
    });
}

/// Whether one state of an event is newer than another. Money that went back does not come again, so the clocks of two
/// fronts decide only between states that are reached equally late.
fn is_newer(state: &str, at: i64, than_state: &str, than_at: i64) -> bool {
    (rank(than_state), than_at) < (rank(state), at)
}

/// How late an event reaches this state.
fn rank(state: &str) -> u8 {
    match state {
        _ if state == PaymentState::Pending.as_str() => 0,
        _ if state == PaymentState::Refunded.as_str() => 2,
        _ => 1,
    }
}

fn row(entry: &PaymentEntry) -> payment_event::ActiveModel {
    payment_event::ActiveModel {
        provider: Set(entry.provider.clone()),
        event_id: Set(entry.event_id.clone()),
        kind: Set(entry.event.clone()),
        sale_id: Set(entry.sale_id.to_string()),
        order_id: Set(entry.order_id.uuid()),
        user_id: Set(entry.user_id.as_ref().map(ToString::to_string)),
        state: Set(entry.state.clone()),
        new_order_id: Set(entry.new_order_id.map(OrderId::uuid)),
        detail: Set(entry.detail.clone()),
        received_at_ms: Set(entry.received_at.0),
        due_at_ms: Set(entry.due_at.0),
        updated_at_ms: Set(entry.updated_at.0),
    }
}
