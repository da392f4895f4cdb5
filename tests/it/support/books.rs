//! Waiting until nothing is under way.

use std::time::Duration;

use doorbuster::audit::{Audit, audit};
use doorbuster::domain::Sale;
use doorbuster::process::Running;

use super::until;

/// The books of a sale once it is at rest and they balance: between the two stores of a change of
/// stock they may not, though no order moves.
pub async fn at_rest(running: &Running, sale: &Sale) -> Audit {
    let mut last = String::new();
    until("every order has ended and the books balance", Duration::from_secs(60), async || {
        let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await;
        if books.as_ref().is_ok_and(|books| books.is_at_rest() && books.balances()) {
            return books.ok();
        }
        // Shown when they never do.
        let now = format!("{books:?}");
        if now != last {
            println!("{now}");
            last = now;
        }
        None
    })
    .await
}
