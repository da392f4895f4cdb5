//! Has rebuilt gates adopt orders whose rows were written only after the rebuild. The worker that writes such a row has
//! the gate adopt it at once; this task catches those where the worker could not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::leader::{alone, work_alone};
use crate::domain::{Millis, Place, SaleId, SaleState};
use crate::gate::{Gate, GateSale};
use crate::lease::Leases;
use crate::settlement::Settler;
use crate::store::{OlderEpoch, Store};

const SCOPE: &str = "_adoption";

/// How often to look for rows of older epochs.
const EVERY: Duration = Duration::from_secs(5);

/// Each look goes back this far before the previous one: a row may become visible after rows that are younger.
const OVERLAP: Duration = Duration::from_secs(60);

/// A look at a sale waits this many times as long as the one before took, so that it costs little however many orders
/// the sale has.
const REST: u32 = 50;

/// The last look at a sale.
struct Looked {
    /// When the last look began that left no order unadopted, by the database's clock.
    at: Millis,
    /// The sale's place in the database: while it is the same, there is no new row. `None` if an order could not be
    /// adopted.
    place: Option<Place>,
    /// No other look before this time.
    rest_until: Instant,
}

impl Looked {
    /// An order that is left is looked for again, however long the rest is.
    fn after(last: Option<&Self>, at: Millis, place: Place, all_known: bool, took: Duration) -> Self {
        let rest_until = Instant::now() + took * REST;
        if all_known {
            return Self { at, place: Some(place), rest_until };
        }
        Self { at: last.map_or(Millis(0), |last| last.at), place: None, rest_until }
    }

    /// From when on rows are looked at: all of them if there was no such look yet.
    fn rows_since(last: Option<&Self>) -> Millis {
        last.map_or(Millis(0), |last| last.at.minus(OVERLAP))
    }
}

/// Looks for orders that a rebuilt gate does not know.
pub struct Adopter {
    /// Adopts the orders.
    pub gate: Gate,
    /// Has the rows.
    pub store: Store,
    /// Lets only one front look at a time.
    pub leases: Leases,
}

impl Adopter {
    /// Runs until `stop`. Errors are retried at the next look.
    pub async fn run(self, stop: CancellationToken) {
        let mut looked = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let look = alone(&self.leases, SCOPE, work_alone(), self.look(&mut looked));
            if let Some(Err(error)) = stop.run_until_cancelled(look).await {
                tracing::debug!(%error, "the search for orders that a rebuilt gate does not know was cut short");
            }
        }
    }

    async fn look(&self, looked: &mut HashMap<SaleId, Looked>) -> Result<(), MaintenanceError> {
        // An order that is live in a database that went back in time may have ended.
        self.store.ensure_current().await?;
        for sale in self.gate.sales().await? {
            // An error in one sale must not hold up the others.
            if let Err(error) = self.look_at(&sale, looked).await {
                tracing::warn!(%sale, %error, "orders that its rebuilt gate does not know could not be searched for");
            }
        }
        Ok(())
    }

    async fn look_at(
        &self,
        sale: &SaleId,
        looked: &mut HashMap<SaleId, Looked>,
    ) -> Result<(), MaintenanceError> {
        let gate = self.gate.describe(sale).await?;
        let is_rebuilt = |gate: &GateSale| gate.number.epoch > 1 && gate.state != SaleState::Frozen;
        let Some(gate) = gate.filter(is_rebuilt) else { return Ok(()) };
        let began = Instant::now();
        let at = self.store.read_clock().await?;
        let places = self.store.places_of(std::slice::from_ref(sale)).await?;
        let place = places.get(sale).copied().unwrap_or_default();
        let last = looked.get(sale);
        if last.is_some_and(|last| last.place == Some(place) || began < last.rest_until) {
            return Ok(());
        }
        // A process that has just started checks every row once.
        let since = Looked::rows_since(last);
        let older = OlderEpoch { epoch: gate.number.epoch, recorded_since: since };
        let all_known = self.adopt_unknown(sale, older).await?;
        let looked_now = Looked::after(last, at, place, all_known, began.elapsed());
        looked.insert(sale.clone(), looked_now);
        Ok(())
    }

    /// Adopts the live orders of older epochs that the gate lacks. Returns `false` if one is left, because another
    /// process holds the lease of its user or a server refused.
    async fn adopt_unknown(&self, sale: &SaleId, older: OlderEpoch) -> Result<bool, MaintenanceError> {
        let settler = Settler { gate: &self.gate, store: &self.store, leases: &self.leases };
        let mut all_known = true;
        let mut pages = self.store.live_orders_before(sale, older);
        while let Some(page) = pages.next().await? {
            let orders: Vec<_> = page.iter().map(|order| (&order.user, order.id)).collect();
            let known = self.gate.has_records_of(sale, &orders).await?;
            for ((user, id), _) in orders.iter().zip(known).filter(|(_, known)| !known) {
                all_known &= settler.adopt(sale, user, *id).await.unwrap_or_else(|error| {
                    tracing::warn!(%sale, order_id = %id, %error, "an order is not adopted yet");
                    false
                });
            }
        }
        Ok(all_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_is_left_is_looked_for_until_it_is_adopted() {
        let (place, took) = (Place { line: 1, number: 7 }, Duration::from_secs(2));
        let since = |looked: &Looked| Looked::rows_since(Some(looked)).0;
        let clean = Looked::after(None, Millis(1_000_000), place, true, took);
        assert_eq!((since(&clean), clean.place), (940_000, Some(place)));
        // The next looks begin 100 s after each other, which is longer than they overlap.
        let left = Looked::after(Some(&clean), Millis(1_100_000), place, false, took);
        assert_eq!((since(&left), left.place), (940_000, None));
        let left = Looked::after(Some(&left), Millis(1_200_000), place, false, took);
        assert_eq!((since(&left), left.place), (940_000, None));
        let clean = Looked::after(Some(&left), Millis(1_300_000), place, true, took);
        assert_eq!((since(&clean), clean.place), (1_240_000, Some(place)));
        // The first look finds all rows, and so does the next one if an order is left.
        assert_eq!(since(&Looked::after(None, Millis(1_000_000), place, false, took)), -60_000);
    }
}
