//! The sales: those that the database says are open can sell.

use super::finding::{Finding, Findings};
use crate::control::{Control, SaleStatus};
use crate::gate::Gate;
use crate::process::Config;
use crate::store::Store;

pub(super) const SUBJECT: &str = "sales";

pub(super) const UNREADABLE: &str = "repeat it";

/// Finds nothing where Redis or the database stops answering.
pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of(SUBJECT);
    let Ok(gate) = Gate::open(config.gate()) else { return Vec::new() };
    let Ok(store) = Store::open_unchanged(&config.store()).await else { return Vec::new() };
    let listed = Control::new(gate, store.clone()).list().await;
    store.close().await;
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
