//! Comparing the database with its witnesses.

use std::collections::BTreeMap;

use sea_orm::{EntityTrait as _, QueryFilter as _};

use crate::domain::{Place, SaleId};
use crate::store::entities::place;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::witnesses::Behind;

impl Store {
    /// Records a place that the gate or the order log has witnessed. It is compared at the next
    /// [`Store::check_places`] and with the next commit of this sale.
    pub fn observe_place(&self, sale: &SaleId, place: Place) {
        self.witnesses.observe(sale.as_str(), place);
    }

    /// The highest place of the sale that this process has seen; zero before the first.
    pub fn highest_place(&self, sale: &SaleId) -> Place {
        self.witnesses.highest(sale.as_str())
    }

    /// How the database is known to be behind, if it is.
    pub fn behind(&self) -> Option<Behind> {
        self.witnesses.behind()
    }

    /// Compares the database with every place that this process has seen. On `Ok` it lacks none of those commits.
    /// [`StoreError::Behind`] until it has been brought up to date.
    pub async fn check_places(&self) -> Result<(), StoreError> {
        // Before the rows are read: what is witnessed before a reading, the reading must show.
        let _ = self.witnesses.take_doubt();
        let witnessed = self.witnesses.all();
        let found = match self.read_places(witnessed.keys().map(String::as_str)).await {
            Ok(found) => found,
            Err(error) => {
                self.witnesses.doubt();
                return Err(error);
            }
        };
        let behind = witnessed.into_iter().find_map(|(sale, witnessed)| {
            let found = found.get(&sale).copied().unwrap_or_default();
            (found < witnessed).then_some(Behind { sale, witnessed, found })
        });
        self.witnesses.judge(behind.clone());
        behind.map_or(Ok(()), |behind| Err(behind.into()))
    }

    /// Fails if the database is known to be behind. It is compared first if a connection was opened since the last
    /// comparison. What was read before this call is not older than any commit that this process knew of then.
    pub async fn ensure_current(&self) -> Result<(), StoreError> {
        if self.witnesses.take_doubt() {
            return self.check_places().await;
        }
        self.witnesses.behind().map_or(Ok(()), |behind| Err(behind.into()))
    }

    /// The places of those of these sales that have one.
    pub(in crate::store) async fn read_places(
        &self,
        sales: impl Iterator<Item = &str>,
    ) -> Result<BTreeMap<String, Place>, StoreError> {
        let sales: Vec<String> = sales.map(str::to_owned).collect();
        if sales.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.within(async {
            let rows = place::Entity::find()
                .filter(is_one_of(&self.db, place::Column::SaleId, sales))
                .all(&self.db)
                .await?;
            let place = |row: &place::Model| Place { line: row.line, number: row.number };
            Ok(rows.into_iter().map(|row| (row.sale_id.clone(), place(&row))).collect())
        })
        .await
    }

    /// The place of each of these sales that has one.
    pub async fn places_of(&self, sales: &[SaleId]) -> Result<BTreeMap<SaleId, Place>, StoreError> {
        let found = self.read_places(sales.iter().map(SaleId::as_str)).await?;
        let known = |sale: &SaleId| Some((sale.clone(), *found.get(sale.as_str())?));
        Ok(sales.iter().filter_map(known).collect())
    }
}
