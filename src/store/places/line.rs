//! Beginning a new line, once a database that went back is up to date.

use std::collections::BTreeMap;

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, EntityTrait as _, QueryOrder as _, QuerySelect as _};

use crate::domain::Place;
use crate::store::entities::place;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, insert_many};

impl Store {
    /// Declares the database up to date after the replay of this process: every sale that it has, or that this process
    /// has seen a place of, begins a line above all of them. On return that is durable, and every process finds the
    /// database current at its next comparison. Returns the line; `None` if the database lacks the beginning of the
    /// replay or something that it restored, because it went back again meanwhile. Then nothing was written.
    pub async fn begin_line(&self) -> Result<Option<i64>, StoreError> {
        let begun = self.within(async {
            let transaction = self.begin_restoring().await?;
            let rows = place::Entity::find()
                .order_by_asc(place::Column::SaleId)
                .lock_exclusive()
                .all(&transaction)
                .await?;
            let mut places: BTreeMap<String, Place> = self.witnesses.all();
            let replay = self.witnesses.replay();
            let restored = places.get(replay).copied().unwrap_or_default();
            if !rows.iter().any(|row| row.sale_id == replay && place_in(row) >= restored) {
                transaction.rollback().await?;
                return Ok(None);
            }
            for row in rows {
                let found = place_in(&row);
                let place = places.entry(row.sale_id).or_default();
                *place = found.max(*place);
            }
            // A line that has only been announced is at number 0.
            let begun = places.values().filter(|place| place.number > 0).map(|place| place.line).max();
            let announced = places.values().map(|place| place.line).max();
            let line = (begun.unwrap_or(0) + 1).max(announced.unwrap_or(0));
            for place in places.values_mut() {
                *place = Place { line, number: place.number + 1 };
            }
            let rows = places.iter().map(|(sale, place)| place::ActiveModel {
                sale_id: Set(sale.clone()),
                line: Set(place.line),
                number: Set(place.number),
            });
            let existing = OnExisting {
                conflict: OnConflict::column(place::Column::SaleId)
                    .update_columns([place::Column::Line, place::Column::Number])
                    .to_owned(),
                postgres: "(sale_id) DO UPDATE SET line = excluded.line, number = excluded.number",
            };
            insert_many(&transaction, rows.collect(), &existing).await?;
            transaction.commit().await?;
            Ok(Some((line, places)))
        });
        let Some((line, places)) = begun.await? else { return Ok(None) };
        for (sale, place) in places {
            self.witnesses.observe(&sale, place);
        }
        self.check_places().await?;
        Ok(Some(line))
    }
}

fn place_in(row: &place::Model) -> Place {
    Place { line: row.line, number: row.number }
}
