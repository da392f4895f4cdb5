//! Notes for webhooks when nothing is left of a sale.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{SaleId, SaleState};
use crate::gate::{Gate, GateError};
use crate::lease::Guard;
use crate::maintenance::MaintenanceError;
use crate::maintenance::leader::keep_leading;
use crate::store::{Store, StoreError};

/// Between two looks. Units that come back and are sold in between are not noticed.
const EVERY: Duration = Duration::from_secs(2);

/// Which open sales had nothing left in the last look.
#[derive(Default)]
pub(super) struct SoldOut {
    looked: Option<Instant>,
    noted: HashMap<SaleId, bool>,
}

impl SoldOut {
    /// Looks at the open sales, if it is time, and keeps the lead meanwhile. What fails is looked at again. An error that every
    /// sale would meet ends the look.
    pub(super) async fn look(&mut self, leader: &Guard, gate: &Gate, store: &Store) {
        if !store.announces_to_webhooks() {
            // What the store is not given now must not count as noted later.
            self.noted.clear();
            return;
        }
        if self.looked.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let sales = match gate.sales().await {
            Ok(sales) => sales,
            Err(error) => return tracing::debug!(%error, "the sales that are sold out are not known"),
        };
        self.noted.retain(|sale, _| sales.contains(sale));
        for sale in sales {
            keep_leading(leader).await;
            if let Err(error) = self.look_at(gate, store, &sale).await {
                tracing::debug!(%sale, %error, "whether it is sold out is not known");
                let is_of_one_sale = matches!(
                    error,
                    MaintenanceError::Gate(GateError::Broken(_))
                        | MaintenanceError::Store(StoreError::Broken(_) | StoreError::Locked(_))
                );
                if !is_of_one_sale {
                    return;
                }
            }
        }
    }

    async fn look_at(&mut self, gate: &Gate, store: &Store, sale: &SaleId) -> Result<(), MaintenanceError> {
        let open = gate.describe(sale).await?.filter(|gate| gate.state == SaleState::Open);
        let Some(open) = open else { return Ok(()) };
        let is_sold_out = open.items.iter().all(|item| item.left <= 0);
        if self.noted.get(sale) != Some(&is_sold_out) {
            store.note_sold_out(sale, is_sold_out).await?;
            self.noted.insert(sale.clone(), is_sold_out);
        }
        Ok(())
    }
}
