//! Writing down what happened to sales.

use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _,
};
use uuid::Uuid;

use crate::domain::{EventType, SaleEvent, SaleId, SaleState};
use crate::store::clock;
use crate::store::entities::sale;
use crate::store::entities::webhook_event;
use crate::store::entities::webhook_sale::{ActiveModel, Column, Entity, Model};
use crate::store::error::StoreError;
use crate::store::handle::Store;

impl Store {
    /// Writes down for the endpoints that a sale is in another state, if that is an event. Call it in the transaction of the
    /// change, with the row as it was before.
    pub(in crate::store) async fn announce_state(
        &self,
        transaction: &DatabaseTransaction,
        before: &sale::Model,
        state: SaleState,
    ) -> Result<(), StoreError> {
        let event = before.state.parse().ok().and_then(|before| SaleEvent::of(before, state));
        let Some(event) = event.filter(|_| self.announces_to_webhooks()) else { return Ok(()) };
        let subject = raise_version(transaction, &before.id).await?;
        write_down(transaction, subject, event).await
    }

    /// Writes down for the endpoints that a sale is sold out, when it is so and was not so in the previous call. If it is so
    /// in the first call, it has been so for some time, and nothing is written down. May be repeated.
    pub async fn note_sold_out(&self, sale: &SaleId, is_so: bool) -> Result<(), StoreError> {
        self.note(sale, Column::IsSoldOut, is_so, SaleEvent::SoldOut).await
    }

    /// The same of books that do not balance. The first call counts as well.
    pub async fn note_broken_books(&self, sale: &SaleId, is_so: bool) -> Result<(), StoreError> {
        self.note(sale, Column::BooksAreBroken, is_so, SaleEvent::BooksBroken).await
    }

    async fn note(
        &self,
        sale: &SaleId,
        column: Column,
        is_so: bool,
        event: SaleEvent,
    ) -> Result<(), StoreError> {
        if !self.announces_to_webhooks() {
            return Ok(());
        }
        self.within(async {
            let row = Entity::find_by_id(sale.as_str()).one(&self.db).await?;
            let is_known = row.is_some();
            let was_so = row.is_some_and(|row| match column {
                Column::IsSoldOut => row.is_sold_out,
                _ => row.books_are_broken,
            });
            if is_known && was_so == is_so {
                return Ok(());
            }
            let transaction = self.begin().await?;
            let subject = raise_version(&transaction, sale.as_str()).await?;
            // Two processes may note the same: one of them changes the row.
            let noted = Entity::update_many()
                .col_expr(column, Expr::val(is_so))
                .filter(Column::SaleId.eq(sale.as_str()))
                .filter(column.eq(!is_so))
                .exec(&transaction)
                .await?;
            let is_news = is_so && noted.rows_affected > 0 && (is_known || event != SaleEvent::SoldOut);
            if is_news {
                write_down(&transaction, subject, event).await?;
            }
            self.commit(transaction, &[]).await
        })
        .await
    }
}

/// Raises the version of the sale's events, and returns the row.
async fn raise_version(transaction: &DatabaseTransaction, sale: &str) -> Result<Model, StoreError> {
    let next = match sea_orm::ConnectionTrait::get_database_backend(transaction) {
        DbBackend::MySql => "version + 1",
        _ => "webhook_sales.version + 1",
    };
    let new = ActiveModel {
        sale_id: Set(sale.to_owned()),
        subject_id: Set(Uuid::now_v7()),
        version: Set(1),
        is_sold_out: Set(false),
        books_are_broken: Set(false),
    };
    Entity::insert(new)
        .on_conflict(OnConflict::column(Column::SaleId).value(Column::Version, Expr::cust(next)).to_owned())
        .exec_without_returning(transaction)
        .await?;
    let row = Entity::find_by_id(sale).one(transaction).await?;
    row.ok_or_else(|| StoreError::unreadable("a sale's webhooks", sale))
}

async fn write_down(
    transaction: &DatabaseTransaction,
    subject: Model,
    event: SaleEvent,
) -> Result<(), StoreError> {
    let row = webhook_event::ActiveModel {
        order_id: Set(subject.subject_id),
        version: Set(subject.version),
        sale_id: Set(subject.sale_id),
        status: Set(EventType::Sale(event).as_str().to_owned()),
        at_ms: Set(clock::now(transaction).await?.0),
    };
    webhook_event::Entity::insert(row).exec_without_returning(transaction).await?;
    Ok(())
}
