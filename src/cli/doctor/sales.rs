//! The sales: the database has not gone back in time, and those that it says are open can sell.

use super::finding::{Finding, Findings};
use crate::control::{Control, SaleStatus};
use crate::gate::Gate;
use crate::process::Config;
use crate::settlement::{SettlementError, witnessed_places};
use crate::store::{Store, StoreError};

pub(super) const SUBJECT: &str = "sales";

pub(super) const UNREADABLE: &str = "repeat it";

/// Finds nothing where Redis or the database stops answering.
pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of(SUBJECT);
    let Ok(gate) = Gate::open(config.gate()) else { return Vec::new() };
    let Ok(store) = Store::open_unchanged(&config.store()).await else { return Vec::new() };
    let places = places(&gate, &store).await;
    let listed = Control::new(gate, store.clone()).list().await;
    store.close().await;
    match places {
        Ok(()) => findings.ok("in the database", "nothing that it had confirmed is missing"),
        Err(SettlementError::Store(StoreError::Behind(behind))) => {
            let advice = "run `doorbuster replay run log`";
            findings.amiss("in the database", behind.to_string(), advice);
            return findings.into_vec();
        }
        Err(_) => return Vec::new(),
    }
    let Ok(listed) = listed else { return Vec::new() };
    if listed.iter().any(SaleStatus::is_unknown) {
        return Vec::new();
    }
    let broken: Vec<_> = listed.iter().filter(|status| status.needs_rebuild()).collect();
    if broken.is_empty() {
        findings.ok("in redis", format!("{} in the database, and none needs a rebuild", listed.len()));
    }
    for status in broken {
        let sale = &status.row.sale.id;
        let found = match status.lost_by_gate {
            true => format!("redis has lost {sale}"),
            false => format!("{sale} is frozen: redis has lost writes"),
        };
        findings.amiss("in redis", found, format!("run `doorbuster rebuild --sale {sale}`"));
    }
    findings.into_vec()
}

/// Compares the database with what Redis has witnessed, without telling Redis what it does not know.
async fn places(gate: &Gate, store: &Store) -> Result<(), SettlementError> {
    for (sale, place) in witnessed_places(gate).await? {
        store.observe_place(&sale, place);
    }
    Ok(store.check_places().await?)
}
