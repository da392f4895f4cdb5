//! Compares the database with its witnesses once a second, in every process: a database that went back in time must be
//! noticed before a deadline passes on what it says.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::settlement::compare_places;
use crate::store::Store;

const EVERY: Duration = Duration::from_secs(1);

/// The comparison of one process.
pub struct PlaceCheck {
    /// The witness of the places.
    pub gate: Gate,
    /// The database.
    pub store: Store,
}

impl PlaceCheck {
    /// Compares once a second until `stop`. The handle on the database remembers the result.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let Some(compared) = stop.run_until_cancelled(compare_places(&self.gate, &self.store)).await
            else {
                return;
            };
            // What is wrong with a server is logged where it is used.
            if let Err(error) = compared {
                tracing::debug!(%error, "the places of the database were not compared");
            }
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }
}
