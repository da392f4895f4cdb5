//! `order`: what becomes of one order after it was accepted.

use super::terms::Why;
use super::{Ended, Failed};
use crate::domain::{Act, OrderId, SaleId};
use crate::orders::{OrderError, Orders};
use crate::process::Parts;
use crate::process::config::Config;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show its row and its history.
    Show(Which),
    /// Say that it is paid.
    Pay(Change),
    /// End it; its units are on sale again.
    Cancel(Change),
    /// End a paid one, after its money was given back; its units are on sale again.
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
    why: Why,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let orders = Orders::new(parts.gate, parts.store, parts.leases);
    let (act, change) = match verb {
        Verb::Show(which) => return show(&orders, &which).await,
        Verb::Pay(change) => (Act::Pay, change),
        Verb::Cancel(change) => (Act::Cancel, change),
        Verb::Refund(change) => (Act::Refund, change),
    };
    let sale = SaleId::parse(&change.which.sale)?;
    let row = orders.act(&sale, change.which.id, act, &change.why.asked()).await.map_err(said)?;
    println!("{} is {}", row.order.id, row.status);
    Ok(Ended::Done)
}

async fn show(orders: &Orders, which: &Which) -> Result<Ended, Failed> {
    let sale = SaleId::parse(&which.sale)?;
    let (row, events) = match orders.show(&sale, which.id).await {
        Err(OrderError::NotFound(id)) => {
            let waiting = orders.in_flight(&sale, id).await.map_err(said)?;
            let order = waiting.ok_or_else(|| said(OrderError::NotFound(id)))?;
            println!("order     {id}");
            println!("user      {}", order.user);
            println!("units     {} {}", order.quantity, order.sku);
            println!("status    accepted, and waiting for its row");
            println!("accepted  {}", order.accepted_at);
            return Ok(Ended::Done);
        }
        shown => shown.map_err(said)?,
    };
    let order = &row.order;
    println!("order     {}", order.id);
    println!("sale      {}", order.sale);
    println!("user      {}", order.user);
    println!("units     {} {}", order.quantity, order.sku);
    println!("status    {}", row.status);
    println!("accepted  {}", order.accepted_at);
    println!("recorded  {}", row.recorded_at);
    if let Some(pay_by) = row.pay_by {
        println!("pay by    {pay_by}");
    }
    for event in events {
        let reason = event.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        println!("{:<9} {} by {}{reason}", event.to, event.at, event.actor);
    }
    Ok(Ended::Done)
}

fn said(error: OrderError) -> Failed {
    match error {
        OrderError::Invalid(invalid) => Failed::Invalid(invalid),
        other => Failed::Said(other.to_string()),
    }
}
