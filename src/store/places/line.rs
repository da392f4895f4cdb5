//! Beginning a new line, once a database that went back is up to date.

use std::collections::BTreeMap;

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, EntityTrait as _, QueryOrder as _, QuerySelect as _};

use crate::domain::Place;
use crate::store::entities::place;
use crate::store::error::StoreError;
use crate::store::handle::Store;

impl Store {
    /// Declares the database up to date: every sale that it has, or that this process has seen a place of, begins a
    /// line above all of them. On return that is durable, and every process finds the database current at its next
    /// comparison. Returns the line.
    pub async fn begin_line(&self) -> Result<i64, StoreError> {
        let begun = self.within(async {
            let transaction = self.begin_restoring().await?;
            let rows = place::Entity::find()
                .order_by_asc(place::Column::SaleId)
                .lock_exclusive()
                .all(&transaction)
                .await?;
            let mut places: BTreeMap<String, Place> = self.witnesses.all();
            for row in rows {
                let place = places.entry(row.sale_id).or_default();
                *place = Place { line: row.line, number: row.number }.max(*place);
            }
            let line = places.values().map(|place| place.line).max().unwrap_or(0) + 1;
            for (sale, place) in &mut places {
                *place = Place { line, number: place.number + 1 };
                let row = place::ActiveModel {
                    sale_id: Set(sale.clone()),
                    line: Set(place.line),
                    number: Set(place.number),
                };
                let conflict = OnConflict::column(place::Column::SaleId)
                    .update_columns([place::Column::Line, place::Column::Number])
                    .to_owned();
                place::Entity::insert(row).on_conflict(conflict).exec_without_returning(&transaction).await?;
            }
            transaction.commit().await?;
            Ok((line, places))
        });
        let (line, places) = begun.await?;
        for (sale, place) in places {
            self.witnesses.observe(&sale, place);
        }
        self.check_places().await?;
        Ok(line)
    }
}
