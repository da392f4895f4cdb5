//! Deliveries: what each endpoint is to be given, and when it is tried again.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Alias, Expr, ExprTrait as _, Query, SelectStatement};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, Condition, ConnectionTrait as _, DatabaseTransaction,
    EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, QueryTrait as _, Select,
    StatementBuilder,
};
use uuid::Uuid;

use super::endpoints::{lock_endpoint, that_are_on};
use crate::domain::{EventType, Millis};
use crate::store::clock;
use crate::store::entities::webhook_delivery::{ActiveModel, Column, Entity, Model};
use crate::store::entities::webhook_event;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, insert_many, is_one_of};

/// Deliveries that one statement changes, or a few more: a million would not end within the time limit.
const PAGE: u64 = 10_000;

/// An event that an endpoint has not taken yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// The order, or what stands for the sale.
    pub subject: Uuid,
    /// The version of the order's row. A later event of the subject has a higher one.
    pub version: i32,
    /// The sale, as the row has it.
    pub sale: String,
    /// What happened.
    pub event: EventType,
    /// When it happened.
    pub at: Millis,
    /// How often it was tried.
    pub tries: i32,
    /// When it is tried; `None` if it was given up.
    pub due: Option<Millis>,
}

/// A delivery that its endpoint did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTaken {
    /// The order, or what stands for the sale.
    pub subject: Uuid,
    /// The version of the event.
    pub version: i32,
    /// How often it had been tried before. If the row has another number by now, an operator has asked for redelivery, and
    /// this failure does not count.
    pub tries: i32,
    /// When to try again; `None` gives it up.
    pub due: Option<Millis>,
    /// Why, in words.
    pub why: String,
}

impl Store {
    /// Makes deliveries of up to so many events that were written down, one for each endpoint that is on and wants the event.
    /// Returns how many events it were. They are durable on return, and may be made twice at the same time. An event that
    /// only a later build knows is left to it, with all that followed in its order or sale.
    pub async fn make_deliveries(&self, limit: u64) -> Result<usize, StoreError> {
        self.within(async {
            // Most of the time there is nothing to do, and SQLite has one writer.
            if known_events().limit(1).one(&self.db).await?.is_none() {
                return Ok(0);
            }
            let transaction = self.begin().await?;
            let events = known_events()
                .order_by_asc(webhook_event::Column::OrderId)
                .order_by_asc(webhook_event::Column::Version)
                .limit(limit)
                .all(&transaction)
                .await?;
            let (endpoints, now) = (that_are_on(&transaction).await?, clock::now(&transaction).await?);
            let rows = endpoints.iter().flat_map(|endpoint| {
                let wanted = events.iter().filter(|event| {
                    EventType::named(&event.status).is_some_and(|event| endpoint.types.has(event))
                });
                wanted.map(|event| ActiveModel {
                    endpoint_id: Set(endpoint.id.clone()),
                    order_id: Set(event.order_id),
                    version: Set(event.version),
                    sale_id: Set(event.sale_id.clone()),
                    status: Set(event.status.clone()),
                    at_ms: Set(event.at_ms),
                    tries: Set(0),
                    due_at_ms: Set(Some(now.0)),
                    last_error: Set(None),
                })
            });
            let existing = OnExisting {
                conflict: self.skip_existing(Column::OrderId),
                postgres: "(endpoint_id, order_id, version) DO NOTHING",
            };
            insert_many(&transaction, rows.collect(), &existing).await?;
            for (version, orders) in by_version(events.iter().map(|event| (event.order_id, event.version))) {
                webhook_event::Entity::delete_many()
                    .filter(webhook_event::Column::Version.eq(version))
                    .filter(is_one_of(&transaction, webhook_event::Column::OrderId, orders))
                    .exec(&transaction)
                    .await?;
            }
            self.commit(transaction, &[]).await?;
            Ok(events.len())
        })
        .await
    }

    /// How many orders and sales wait for a build that knows their events; 10,000 at most.
    pub async fn unknown_events(&self) -> Result<u64, StoreError> {
        self.within(async {
            let unknown =
                webhook_event::Entity::find().filter(webhook_event::Column::Status.is_not_in(known()));
            let with_unknown = unknown.select_only().column(webhook_event::Column::OrderId).distinct();
            let orders: Vec<Uuid> = with_unknown.limit(10_000).into_tuple().all(&self.db).await?;
            Ok(orders.len() as u64)
        })
        .await
    }

    /// Whether an endpoint is still to be given anything, now or later.
    pub async fn has_deliveries(&self, endpoint: &str) -> Result<bool, StoreError> {
        self.within(async {
            let waiting = Entity::find()
                .filter(Column::EndpointId.eq(endpoint))
                .filter(Column::DueAtMs.is_not_null())
                // This build never gives it the others.
                .filter(Column::Status.is_in(known()))
                .filter(Expr::exists(earlier_state(endpoint)).not());
            Ok(waiting.one(&self.db).await?.is_some())
        })
        .await
    }

    /// What an endpoint has not taken of up to so many orders and sales whose next event is due, the longest due first. Of
    /// each all that waits, in the order in which it happened.
    pub async fn due_deliveries(
        &self,
        endpoint: &str,
        limit: u64,
    ) -> Result<Vec<WebhookDelivery>, StoreError> {
        self.within(async {
            let due: Vec<Uuid> = Entity::find()
                .select_only()
                .column(Column::OrderId)
                .filter(Column::EndpointId.eq(endpoint))
                .filter(Expr::col(Column::DueAtMs).lte(self.clock()))
                .filter(Column::Status.is_in(known()))
                // A later state is due as well, but what it waits for is not: many of these would hide everything else.
                .filter(Expr::exists(earlier_state(endpoint)).not())
                .order_by_asc(Column::DueAtMs)
                .limit(limit)
                .into_tuple()
                .all(&self.db)
                .await?;
            if due.is_empty() {
                return Ok(Vec::new());
            }
            let rows = Entity::find()
                .filter(Column::EndpointId.eq(endpoint))
                .filter(Column::DueAtMs.is_not_null())
                .filter(is_one_of(&self.db, Column::OrderId, due))
                .order_by_asc(Column::OrderId)
                .order_by_asc(Column::Version)
                .all(&self.db)
                .await?;
            let mut deliveries = Vec::with_capacity(rows.len());
            for events in rows.chunk_by(|one, next| one.order_id == next.order_id) {
                deliveries.extend(events.iter().map_while(read));
            }
            Ok(deliveries)
        })
        .await
    }

    /// Records what an endpoint has taken and what it has not. On return that is durable. May be repeated.
    pub async fn record_deliveries(
        &self,
        endpoint: &str,
        taken: &[(Uuid, i32)],
        not_taken: &[NotTaken],
    ) -> Result<(), StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            lock_endpoint(&transaction, endpoint).await?;
            for (version, orders) in by_version(taken.iter().copied()) {
                Entity::delete_many()
                    .filter(Column::EndpointId.eq(endpoint))
                    .filter(Column::Version.eq(version))
                    .filter(is_one_of(&transaction, Column::OrderId, orders))
                    .exec(&transaction)
                    .await?;
            }
            for failed in not_taken {
                note_failure(&transaction, endpoint, failed).await?;
            }
            self.commit(transaction, &[]).await
        })
        .await
    }

    /// Has an endpoint be given at once what it was not given because of failures. Returns how many deliveries. They are
    /// changed a page at a time: after an error some may be due already. May be repeated. Fails if the database is known to
    /// be behind.
    pub async fn redeliver(&self, endpoint: &str) -> Result<u64, StoreError> {
        let again = |page| {
            Entity::update_many()
                .col_expr(Column::DueAtMs, self.clock())
                .col_expr(Column::Tries, Expr::val(0))
                .filter(page)
                .filter(Condition::any().add(Column::DueAtMs.is_null()).add(Column::Tries.gt(0)))
                .into_query()
        };
        self.change_in_pages(endpoint, again).await
    }

    /// Deletes what an endpoint has not taken, a page at a time. May be repeated.
    pub(super) async fn delete_deliveries(&self, endpoint: &str) -> Result<(), StoreError> {
        self.change_in_pages(endpoint, |page| Entity::delete_many().filter(page).into_query()).await?;
        Ok(())
    }

    /// Changes the deliveries of an endpoint, a page in each transaction. Returns how many were changed.
    async fn change_in_pages<S: StatementBuilder + Sync>(
        &self,
        endpoint: &str,
        change: impl Fn(Condition) -> S,
    ) -> Result<u64, StoreError> {
        let (mut changed, mut after) = (0, Some(Uuid::nil()));
        while let Some(begin) = after {
            let (page, last) = self.page_of(endpoint, begin).await?;
            let statement = change(page);
            changed += self
                .within(async {
                    let transaction = self.begin().await?;
                    lock_endpoint(&transaction, endpoint).await?;
                    let rows = transaction.execute(&statement).await?.rows_affected();
                    transaction.commit().await?;
                    Ok(rows)
                })
                .await?;
            after = last;
        }
        Ok(changed)
    }

    /// The deliveries of the orders and sales after this one, as a condition, up to the one that is returned; all of them
    /// if that is `None`.
    async fn page_of(&self, endpoint: &str, after: Uuid) -> Result<(Condition, Option<Uuid>), StoreError> {
        let page = Condition::all().add(Column::EndpointId.eq(endpoint)).add(Column::OrderId.gt(after));
        let last: Option<Uuid> = self
            .within(async {
                let last = Entity::find().select_only().column(Column::OrderId).filter(page.clone());
                let last = last.order_by_asc(Column::OrderId).offset(PAGE - 1).limit(1);
                Ok(last.into_tuple().one(&self.db).await?)
            })
            .await?;
        let page = match last {
            Some(last) => page.add(Column::OrderId.lte(last)),
            None => page,
        };
        Ok((page, last))
    }
}

/// The names of the events that this build knows.
fn known() -> impl Iterator<Item = &'static str> {
    EventType::all().map(EventType::as_str)
}

/// The events that this build knows and that follow none which it does not know.
fn known_events() -> Select<webhook_event::Entity> {
    let earlier = Alias::new("earlier");
    let of = |column: webhook_event::Column| Expr::col((earlier.clone(), column));
    let unknown = Query::select()
        .expr(Expr::val(1))
        .from_as(webhook_event::Entity, earlier.clone())
        .and_where(
            of(webhook_event::Column::OrderId)
                .equals((webhook_event::Entity, webhook_event::Column::OrderId)),
        )
        .and_where(
            of(webhook_event::Column::Version)
                .lt(Expr::col((webhook_event::Entity, webhook_event::Column::Version))),
        )
        .and_where(of(webhook_event::Column::Status).is_not_in(known()))
        .to_owned();
    webhook_event::Entity::find()
        .filter(webhook_event::Column::Status.is_in(known()))
        .filter(Expr::exists(unknown).not())
}

/// An earlier event of the same order or sale that waits, as a subquery.
fn earlier_state(endpoint: &str) -> SelectStatement {
    let earlier = Alias::new("earlier");
    let of = |column: Column| Expr::col((earlier.clone(), column));
    Query::select()
        .expr(Expr::val(1))
        .from_as(Entity, earlier.clone())
        .and_where(of(Column::EndpointId).eq(endpoint))
        .and_where(of(Column::OrderId).equals((Entity, Column::OrderId)))
        .and_where(of(Column::Version).lt(Expr::col((Entity, Column::Version))))
        .and_where(of(Column::DueAtMs).is_not_null())
        .to_owned()
}

async fn note_failure(
    transaction: &DatabaseTransaction,
    endpoint: &str,
    failed: &NotTaken,
) -> Result<(), StoreError> {
    let why: String = failed.why.chars().take(200).collect();
    Entity::update_many()
        .col_expr(Column::Tries, Expr::col(Column::Tries).add(1))
        .col_expr(Column::DueAtMs, Expr::val(failed.due.map(|due| due.0)))
        .col_expr(Column::LastError, Expr::val(why))
        .filter(Column::EndpointId.eq(endpoint))
        .filter(Column::OrderId.eq(failed.subject))
        .filter(Column::Version.eq(failed.version))
        .filter(Column::Tries.eq(failed.tries))
        .exec(transaction)
        .await?;
    Ok(())
}

fn by_version(all: impl Iterator<Item = (Uuid, i32)>) -> BTreeMap<i32, Vec<Uuid>> {
    let mut by_version: BTreeMap<i32, Vec<Uuid>> = BTreeMap::new();
    for (order, version) in all {
        by_version.entry(version).or_default().push(order);
    }
    by_version
}

/// `None` if only a later build knows what happened.
fn read(row: &Model) -> Option<WebhookDelivery> {
    Some(WebhookDelivery {
        subject: row.order_id,
        version: row.version,
        sale: row.sale_id.clone(),
        event: EventType::named(&row.status)?,
        at: Millis(row.at_ms),
        tries: row.tries,
        due: row.due_at_ms.map(Millis),
    })
}
