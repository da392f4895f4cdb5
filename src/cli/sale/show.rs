//! The output of `doorbuster sale` for sales and their acts.

use crate::cli::ended::{Ended, Failed};
use crate::cli::output::Output;
use crate::control::{Control, SaleStatus};
use crate::domain::{SaleId, Sku, Terms};
use crate::store::ActState;

/// Acts in one listing.
const LISTED: u64 = 1_000;

pub(super) async fn list(control: &Control, output: &Output) -> Result<Ended, Failed> {
    let listed = control.list().await?;
    if output.is_json() {
        let sales: Vec<_> = listed.iter().map(json).collect();
        say!("{}", serde_json::json!({ "sales": sales }));
        return Ok(Ended::Done);
    }
    if listed.is_empty() {
        say!("no sales yet; create one with: doorbuster sale create shoes --item shoe=500");
        return Ok(Ended::Done);
    }
    say!("{:<24} {:<8} {:<25} {:>10} {:>10}", "SALE", "STATE", "OPENS AT", "STOCK", "SOLD");
    for status in &listed {
        let row = &status.row;
        let (stock, sold) =
            row.items.iter().fold((0, 0), |(stock, sold), item| (stock + item.stock, sold + item.sold));
        say!(
            "{:<24} {:<8} {:<25} {stock:>10} {sold:>10}",
            row.sale.id,
            if status.lost_by_gate { "LOST" } else { status.state().as_str() },
            row.sale.window.opens_at
        );
    }
    Ok(Ended::Done)
}

pub(super) async fn show(control: &Control, sale: &SaleId, output: &Output) -> Result<Ended, Failed> {
    let status = control.show(sale).await?;
    if output.is_json() {
        say!("{}", json(&status));
        return Ok(Ended::Done);
    }
    let row = &status.row;
    say!("sale            {}", row.sale.id);
    say!("name            {}", row.sale.name);
    say!("state           {}", status.state());
    if status.lost_by_gate {
        say!("redis           has lost this sale: it sells nothing until it is rebuilt");
    }
    if status.needs_rebuild() {
        let by_itself = if status.lost_by_gate {
            ""
        } else {
            " (a front does it within seconds, unless gate.rebuild is manual)"
        };
        say!("to do           doorbuster rebuild --sale {}{by_itself}", row.sale.id);
    }
    say!("opens at        {}", row.sale.window.opens_at);
    say!(
        "closes at       {}",
        row.sale.window.closes_at.map_or("when it is closed".into(), |at| at.to_string())
    );
    say!("limit per user  {}", row.sale.limit_per_user);
    for (name, term) in terms(&row.sale.terms) {
        say!("{name:<15} {term}");
    }
    if let Some(gate) = &status.gate {
        say!("in flight       {}", gate.waiting);
    }
    for item in &row.sale.items {
        if let Some(limit) = item.limit_per_user {
            say!("limit of item   {limit} of {} per user", item.sku);
        }
    }
    say!("\n{:<24} {:>10} {:>10} {:>10}", "ITEM", "STOCK", "LEFT", "SOLD");
    for item in &row.items {
        let left = status.gate.iter().flat_map(|gate| &gate.items).find(|held| held.sku == item.sku);
        let left = left.map_or("-".into(), |held| held.left.to_string());
        say!("{:<24} {:>10} {left:>10} {:>10}", item.sku, item.stock, item.sold);
    }
    Ok(Ended::Done)
}

fn json(status: &SaleStatus) -> serde_json::Value {
    let row = &status.row;
    let gate_item = |sku: &Sku| status.gate.iter().flat_map(|gate| &gate.items).find(|held| held.sku == *sku);
    serde_json::json!({
        "sale_id": row.sale.id,
        "name": row.sale.name,
        "state": status.state(),
        "needs_rebuild": status.needs_rebuild(),
        "opens_at": row.sale.window.opens_at,
        "closes_at": row.sale.window.closes_at,
        "limit_per_user": row.sale.limit_per_user,
        "rules": row.sale.terms,
        "in_flight": status.gate.as_ref().map(|gate| gate.waiting),
        "items": row.items.iter().map(|item| serde_json::json!({
            "sku": item.sku, "stock": item.stock, "sold": item.sold,
            "left": gate_item(&item.sku).map(|held| held.left),
        })).collect::<Vec<_>>(),
    })
}

/// The terms that differ from the defaults.
fn terms(terms: &Terms) -> Vec<(&'static str, String)> {
    let mut shown = Vec::new();
    if let Some(seconds) = terms.pay_within_s {
        let late = terms.late_payment.as_str();
        shown.push(("to be paid", format!("within {seconds} s of the confirmation; after that: {late}")));
    }
    if !terms.rebuy {
        shown.push(("buying again", "not allowed after an order has ended".into()));
    }
    for (name, rate) in [("rate per user", terms.user_rate), ("rate of sale", terms.sale_rate)] {
        shown.extend(rate.map(|rate| (name, rate.to_string())));
    }
    shown.extend(terms.message.clone().map(|message| ("while paused", message)));
    shown.extend(terms.retry_after_s.map(|seconds| ("try again after", format!("{seconds} s"))));
    shown
}

pub(super) async fn acts(control: &Control, sale: &SaleId, output: &Output) -> Result<Ended, Failed> {
    let acts = control.acts(sale, LISTED).await?;
    if output.is_json() {
        say!("{}", serde_json::json!({ "acts": acts }));
        return Ok(Ended::Done);
    }
    say!("{:<25} {:<9} {:<8} {:<20} WHAT", "AT", "ACT", "STATE", "BY");
    for act in acts {
        let what = if act.args == "{}" { String::new() } else { format!("{} ", act.args) };
        let result = act.result.unwrap_or_else(|| "outcome unknown; repeat it with the same key".into());
        let reason = act.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let state = match act.state {
            ActState::Pending => "pending",
            ActState::Done => "done",
            ActState::Refused => "refused",
        };
        say!("{:<25} {:<9} {:<8} {:<20} {what}{result}{reason}", act.at, act.kind, state, act.by);
    }
    Ok(Ended::Done)
}
