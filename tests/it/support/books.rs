//! Waiting until a sale is at rest.

use std::time::Duration;

use doorbuster::audit::{Audit, audit};
use doorbuster::domain::Sale;
use doorbuster::process::Running;

use super::until;

/// Waits until a sale is at rest and its books balance, and returns them. A sale at rest may still be out of balance
/// for a moment: a restock changes gate and database one after the other.
pub async fn at_rest(running: &Running, sale: &Sale) -> Audit {
    let mut last = String::new();
    until("every order has ended and the books balance", Duration::from_secs(60), async || {
        let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await;
        if books.as_ref().is_ok_and(|books| books.is_at_rest() && books.balances()) {
            return books.ok();
        }
        // Printed, so that a sale that never gets there shows its books.
        let now = format!("{books:?}");
        if now != last {
            println!("{now}");
            last = now;
        }
        None
    })
    .await
}
