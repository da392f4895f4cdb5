//! Changes to a sale's stock and terms that the log does not have: like the ends of orders, they are written to the log
//! just after they are committed. The gate has them with their versions. Without them, an order for an added unit would be
//! refused, and the gate would take the next change for the one that it already has. The gate also has the requests of the
//! last changes of each item.

use super::error::ReplayError;
use super::survey::Survey;
use super::work::Work;
use crate::domain::{Entry, SaleEntry};
use crate::gate::GateSale;
use crate::store::WriteMode;

impl Work<'_> {
    /// Adds what the gate has to the changes of the sales, if the database was behind. Call it when the changes that the
    /// log has are restored.
    pub(super) async fn add_changes_in_gate(&mut self, survey: &mut Survey) -> Result<(), ReplayError> {
        if !self.report.was_behind || self.run.is_none() {
            return Ok(());
        }
        for sale in survey.sales.clone() {
            let (gate, store) = (self.replay.gate.clone(), self.replay.store.clone());
            let described = self.retrying(async || Ok(gate.describe(&sale).await?)).await?.flatten();
            let entries = self.retrying(async || Ok(store.sale_entries(&sale).await?)).await?;
            let row = entries.unwrap_or_default().into_iter().find_map(|entry| match entry {
                Entry::Sale(entry) => Some(*entry),
                _ => None,
            });
            let (Some(described), Some(row)) = (described, row) else { continue };
            for item in &row.items {
                let latest =
                    self.retrying(async || Ok(gate.latest_restocks(&sale, &item.sku).await?)).await?;
                // Or a repeat of the request, whose answer was lost, would change the stock once more.
                for act in latest.unwrap_or_default() {
                    if act.item_version.is_some_and(|version| version > item.version) {
                        self.restore_other(&sale, async || store.restore_act(&act, WriteMode::Rows).await)
                            .await?;
                    }
                }
            }
            survey.changes.extend(newer_in_gate(&described, row));
        }
        Ok(())
    }
}

/// The sale with the stock and the terms of the gate, where they have higher versions there; `None` if none has.
fn newer_in_gate(gate: &GateSale, mut row: SaleEntry) -> Option<SaleEntry> {
    let mut is_newer = false;
    for item in &mut row.items {
        let known = gate.items.iter().find(|known| known.sku == item.sku && known.version > item.version);
        if let Some(known) = known {
            (item.stock, item.version, is_newer) = (known.stock, known.version, true);
        }
    }
    if gate.terms_version > row.terms_version {
        (row.name, row.window, row.limit_per_user) = (gate.name.clone(), gate.window, gate.limit_per_user);
        (row.terms, row.terms_version, is_newer) = (gate.terms.clone(), gate.terms_version, true);
    }
    is_newer.then_some(row)
}
