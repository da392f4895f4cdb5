//! `order`: one accepted order, and an operator's changes to it.

use std::time::Duration;

use super::ended::{Ended, Failed};
use super::terms::Reason;
use crate::domain::{Act, OrderId, SaleId};
use crate::orders::{Orders, Shown};
use crate::process::{Config, Parts};
use crate::queue::OrderLog;

/// How long a change waits for the broker, so that the order log has it at once.
const BROKER_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show its row and its history.
    #[command(after_help = "Example:\n  doorbuster order show shoes 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Show(Which),
    /// Record that it is paid.
    #[command(
        after_help = "Example:\n  doorbuster order pay shoes 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d --reason \"by transfer\""
    )]
    Pay(Change),
    /// Cancel it; its units are on sale again.
    #[command(after_help = "Example:\n  doorbuster order cancel shoes 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Cancel(Change),
    /// Refund a paid order, after the money was returned; its units are on sale again.
    #[command(after_help = "Example:\n  doorbuster order refund shoes 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Refund(Change),
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    sale: String,
    id: OrderId,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    reason: Reason,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let log = OrderLog::open(config.queue());
    let orders = Orders::new(parts.gate, parts.store, parts.leases).logged_to(log.clone());
    let (act, change) = match verb {
        Verb::Show(which) => return show(&orders, &which).await,
        Verb::Pay(change) => (Act::Pay, change),
        Verb::Cancel(change) => (Act::Cancel, change),
        Verb::Refund(change) => (Act::Refund, change),
    };
    let sale = SaleId::parse(&change.which.sale)?;
    if !log.is_up_within(BROKER_WITHIN).await {
        eprintln!(
            "the broker does not answer: until it does, a database that loses its last commits would undo this change"
        );
    }
    let row = orders.act(&sale, change.which.id, act, &change.reason.request()).await?;
    say!("{} is {}", row.order.id, row.status);
    Ok(Ended::Done)
}

async fn show(orders: &Orders, which: &Which) -> Result<Ended, Failed> {
    let sale = SaleId::parse(&which.sale)?;
    let (row, events) = match orders.show(&sale, which.id).await? {
        Shown::InFlight(order) => {
            say!("order     {}", order.id);
            say!("user      {}", order.user);
            say!("units     {} {}", order.quantity, order.sku);
            say!("status    accepted; its row is not written yet");
            say!("accepted  {}", order.accepted_at);
            return Ok(Ended::Done);
        }
        Shown::Recorded(row, events) => (row, events),
    };
    let order = &row.order;
    say!("order     {}", order.id);
    say!("sale      {}", order.sale);
    say!("user      {}", order.user);
    say!("units     {} {}", order.quantity, order.sku);
    say!("status    {}", row.status);
    say!("accepted  {}", order.accepted_at);
    say!("recorded  {}", row.recorded_at);
    if let Some(pay_by) = row.pay_by {
        say!("pay by    {pay_by}");
    }
    for event in events {
        let reason = event.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        say!("{:<9} {} by {}{reason}", event.to, event.at, event.actor);
    }
    Ok(Ended::Done)
}
