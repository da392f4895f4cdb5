//! Comparing the database with its witnesses.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use sea_orm::{ConnectionTrait, DatabaseTransaction, EntityTrait as _, QueryFilter as _};

use crate::domain::{Place, SaleId};
use crate::store::entities::place;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::permits::without_permit;
use crate::store::witnesses::{Behind, Heard};

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

    /// The line that the database is on, as far as this process knows. What is read or committed afterwards belongs to
    /// this line or to a later one. Fails if the database is known to be behind.
    pub async fn line(&self) -> Result<i64, StoreError> {
        self.ensure_current().await?;
        Ok(self.witnesses.line())
    }

    /// The line that would begin now.
    pub fn next_line(&self) -> i64 {
        self.witnesses.line() + 1
    }

    /// How the database is known to be behind, if it is.
    pub fn behind(&self) -> Option<Behind> {
        self.witnesses.behind()
    }

    /// Has `hear` asked for the places that other stores have witnessed, before a new connection is believed: a process
    /// that has just started has seen nothing itself. `hear` returns `None` if they do not answer: until they have once,
    /// nothing is committed, since a commit of a database that went back could bring it past the place that reveals it. It
    /// returns an error if they may have lost what they had witnessed: until then, nothing that the database says is passed
    /// on or acted upon. It is waited for within the time limit of a query. Only the first call counts.
    pub fn hear_witnesses_with(&self, hear: impl Fn() -> BoxFuture<'static, Heard> + Send + Sync + 'static) {
        let _ = self.witnesses.hear.set(Box::new(hear));
    }

    /// Compares the database with every place that this process has seen. On `Ok` it lacks none of those commits.
    /// [`StoreError::Behind`] until it has been brought up to date.
    pub async fn check_places(&self) -> Result<(), StoreError> {
        // Before the rows are read: what is witnessed before a reading, the reading must show.
        let witnessed = self.witnesses.all();
        let found = self.read_places(witnessed.keys().map(String::as_str)).await?;
        let behind = first_behind(witnessed, &found);
        self.witnesses.judge(behind.clone());
        behind.map_or(Ok(()), |behind| Err(behind.into()))
    }

    /// Every sale that the database is behind in, with the highest place that this process has seen of it.
    pub async fn places_lost(&self) -> Result<Vec<(SaleId, Place)>, StoreError> {
        let witnessed = self.witnesses.all();
        let found = self.read_places(witnessed.keys().map(String::as_str)).await?;
        let lost = witnessed
            .into_iter()
            .filter(|(sale, witnessed)| found.get(sale).copied().unwrap_or_default() < *witnessed);
        Ok(lost.filter_map(|(sale, witnessed)| Some((sale.parse().ok()?, witnessed))).collect())
    }

    /// Fails if the database is known to be behind. It is compared first if a connection was opened since the last
    /// comparison. What was read before this call is not older than any commit that this process or another store knew
    /// of then. While the other stores are away, only this process's own knowledge counts.
    pub async fn ensure_current(&self) -> Result<(), StoreError> {
        if self.witnesses.is_in_doubt() {
            let _one = self.witnesses.hearing.lock().await;
            if self.witnesses.is_in_doubt() {
                // Callers that hold all permits may be waiting for this.
                return without_permit(self.settle_doubts()).await;
            }
        }
        self.witnesses.behind().map_or(Ok(()), |behind| Err(behind.into()))
    }

    /// Like [`Store::ensure_current`], and compares the places of these sales now: also a database that was put back under
    /// open connections a moment ago is found behind. Pass what other stores have witnessed to [`Store::observe_place`]
    /// first. What was read of these sales before this call is then no older than any commit that they or this process
    /// knew of.
    pub async fn ensure_current_in(
        &self,
        sales: impl IntoIterator<Item = &SaleId>,
    ) -> Result<(), StoreError> {
        self.ensure_current().await?;
        let place = |sale: &SaleId| (sale.to_string(), self.witnesses.highest(sale.as_str()));
        let mut witnessed: BTreeMap<String, Place> = sales.into_iter().map(place).collect();
        witnessed.retain(|_, place| *place > Place::default());
        let found = self.read_places(witnessed.keys().map(String::as_str)).await?;
        let Some(behind) = first_behind(witnessed, &found) else { return Ok(()) };
        self.witnesses.judge(Some(behind.clone()));
        Err(behind.into())
    }

    async fn settle_doubts(&self) -> Result<(), StoreError> {
        let doubts = self.witnesses.doubts();
        self.check_installation().await?;
        self.within(self.hear_witnesses()).await?;
        let compared = self.check_places().await;
        if matches!(compared, Ok(()) | Err(StoreError::Behind(_))) {
            self.witnesses.settle(doubts);
        }
        compared
    }

    /// Observes what other stores have witnessed.
    pub(in crate::store) async fn hear_witnesses(&self) -> Result<(), StoreError> {
        let Some(hear) = self.witnesses.hear.get() else { return Ok(()) };
        let heard = hear().await.map_err(|why| StoreError::Away(why.to_string()))?;
        let Some(heard) = heard else { return Ok(()) };
        for (sale, place) in heard {
            self.observe_place(&sale, place);
        }
        self.witnesses.heard.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Fails if the database is behind as this transaction sees it. For one that advances no place.
    pub(super) async fn ensure_current_within(
        &self,
        transaction: &DatabaseTransaction,
    ) -> Result<(), StoreError> {
        let witnessed = self.witnesses.all();
        let found = find_places(transaction, witnessed.keys().cloned().collect()).await?;
        let behind = first_behind(witnessed, &found);
        if behind.is_some() {
            self.witnesses.judge(behind.clone());
        }
        behind.map_or(Ok(()), |behind| Err(behind.into()))
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
        self.within(find_places(&self.db, sales)).await
    }

    /// Whether the database is behind, as far as these sales show it in a transaction that has not advanced them. Other
    /// stores are heard first if a connection was opened since the last comparison.
    pub(in crate::store) async fn behind_in(
        &self,
        transaction: &DatabaseTransaction,
        sales: &[&str],
    ) -> Result<Option<Behind>, StoreError> {
        if self.witnesses.behind().is_some() || !self.witnesses.is_in_doubt() {
            return Ok(self.witnesses.behind());
        }
        // A replay has heard the log itself.
        let _ = self.hear_witnesses().await;
        let mut witnessed = self.witnesses.all();
        witnessed.retain(|sale, _| sales.contains(&sale.as_str()));
        let found = find_places(transaction, witnessed.keys().cloned().collect()).await?;
        let behind = first_behind(witnessed, &found);
        if behind.is_some() {
            self.witnesses.judge(behind.clone());
        }
        Ok(behind)
    }

    /// The place of each of these sales that has one.
    pub async fn places_of(&self, sales: &[SaleId]) -> Result<BTreeMap<SaleId, Place>, StoreError> {
        let found = self.read_places(sales.iter().map(SaleId::as_str)).await?;
        let known = |sale: &SaleId| Some((sale.clone(), *found.get(sale.as_str())?));
        Ok(sales.iter().filter_map(known).collect())
    }
}

/// The place of a sale; zero before its first.
pub(in crate::store) async fn place_of(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
) -> Result<Place, StoreError> {
    let found = find_places(connection, vec![sale.to_string()]).await?;
    Ok(found.into_values().next().unwrap_or_default())
}

/// The places of those of these sales that have one.
async fn find_places(
    connection: &impl ConnectionTrait,
    sales: Vec<String>,
) -> Result<BTreeMap<String, Place>, StoreError> {
    if sales.is_empty() {
        return Ok(BTreeMap::new());
    }
    let these = is_one_of(connection, place::Column::SaleId, sales);
    let rows = place::Entity::find().filter(these).all(connection).await?;
    let place = |row: place::Model| (row.sale_id, Place { line: row.line, number: row.number });
    Ok(rows.into_iter().map(place).collect())
}

fn first_behind(witnessed: BTreeMap<String, Place>, found: &BTreeMap<String, Place>) -> Option<Behind> {
    witnessed.into_iter().find_map(|(sale, witnessed)| {
        let found = found.get(&sale).copied().unwrap_or_default();
        (found < witnessed).then_some(Behind { sale, witnessed, found })
    })
}
