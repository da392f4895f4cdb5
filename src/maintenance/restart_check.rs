//! What a Redis that was started anew must stand before it sells again: no sale in it may be behind
//! the database, or behind what the order log has of orders without a row.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::domain::{CLOCK_SKEW, Entry, Millis, Number, SaleId};
use crate::gate::{Gate, GateError};
use crate::queue::{LogFrom, OrderLog};
use crate::store::Store;

const EVERY: Duration = Duration::from_secs(1);

pub struct RestartCheck {
    pub gate: Gate,
    /// `Err`: nothing is sold, for this reason.
    pub tell: watch::Sender<Result<(), String>>,
}

impl RestartCheck {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let Some(compared) = stop.run_until_cancelled(self.gate.ensure_compared()).await else { return };
            let compared = compared.map_err(|error| error.to_string());
            if let Err(why) = &compared
                && *self.tell.borrow() != compared
            {
                tracing::warn!(why, "nothing is sold");
            }
            let _before = self.tell.send_replace(compared);
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }
}

/// Freezes every sale whose gate is behind its rows, or behind the order log. An error says that this
/// could not be found out: then nothing may be sold yet.
pub async fn verify(gate: Gate, store: Store, log: OrderLog) -> Result<(), String> {
    let mut known: BTreeMap<SaleId, Number> = BTreeMap::new();
    // What has a higher number than every row was accepted after the last of them.
    let mut since: Option<Millis> = None;
    for sale in gate.sales().await.map_err(|error| error.to_string())? {
        let last = store.last_order(&sale).await.map_err(|error| error.to_string())?;
        let row = store.sale(&sale).await.map_err(|error| error.to_string())?;
        let (orders, at) = last.map_or((Number::default(), None), |(number, at)| (number, Some(at)));
        if let Some(row) = &row
            && !row.state.has_ended()
        {
            let from = at.unwrap_or(row.created_at);
            since = Some(since.map_or(from, |since| since.min(from)));
        }
        // What an operator did last has a number too: a pause that was lost would sell. Units that came
        // back took one as well.
        let acts = row.map(|row| row.number.max(row.witnessed)).unwrap_or_default();
        known.insert(sale, orders.max(acts));
    }
    if let Some(since) = since {
        // From a log that holds no entry of a sale nothing follows.
        let from = LogFrom::Time(since.minus(CLOCK_SKEW));
        for (sale, number) in highest_logged(&log, from).await? {
            if let Some(known) = known.get_mut(&sale) {
                *known = number.max(*known);
            }
        }
    }
    for (sale, known) in known {
        gate.observe_number(&sale, known);
        let frozen = match gate.freeze_if_behind(&sale, known).await {
            Ok(frozen) => frozen,
            // One sale that nobody can read must not keep the others shut; it sells nothing itself.
            Err(error @ GateError::Broken(_)) => {
                tracing::error!(%sale, %error, "a sale in redis cannot be read");
                false
            }
            Err(error) => return Err(error.to_string()),
        };
        if frozen {
            metrics::counter!("gate_frozen_total").increment(1);
            tracing::error!(%sale, %known, "sale frozen: redis came back without writes that the database or the order log has");
        }
    }
    Ok(())
}

/// The highest number of each sale that the log has from a time on.
async fn highest_logged(log: &OrderLog, from: LogFrom) -> Result<BTreeMap<SaleId, Number>, String> {
    let mut highest: BTreeMap<SaleId, Number> = BTreeMap::new();
    let mut reader = log.read(from).await.map_err(|error| error.to_string())?;
    while let Some(message) = reader.next().await.map_err(|error| error.to_string())? {
        for entry in message.entries.iter().flatten() {
            let number = match entry {
                Entry::Sale(sale) => sale.number,
                other => other.order().map(|order| order.number).unwrap_or_default(),
            };
            match highest.get_mut(entry.sale()) {
                Some(known) => *known = number.max(*known),
                None => {
                    highest.insert(entry.sale().clone(), number);
                }
            }
        }
    }
    reader.close().await;
    Ok(highest)
}
