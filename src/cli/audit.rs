//! `audit`: do the books balance; and `rebuild`, for a gate that lost writes.

use std::time::Duration;

use super::confirm::confirmed;
use super::replay::tell_books;
use super::terms::{Why as Because, operator};
use super::{Ended, Failed};
use crate::audit::AuditError;
use crate::domain::{ActRequest, SaleId, SaleState};
use crate::process::Parts;
use crate::process::config::Config;
use crate::queue::{DeadLetters, OrderLog, Publisher};
use crate::recovery::{
    Comparison, Difference, DifferenceKind, Rebuild, RebuildError, Repair, Repaired, compare,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(long, required_unless_present = "all", conflicts_with = "all")]
    sale: Option<SaleId>,
    /// Every sale that was opened and is not archived.
    #[arg(long)]
    all: bool,
    /// Say what would mend it, ask, and mend it.
    #[arg(long)]
    repair: bool,
    /// Do not ask.
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Leave out orders that were accepted in the last seconds: somebody is still at work on them.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    older_than: u64,
    /// Do not ask the broker for what the order log has of orders that only the gate knows.
    #[arg(long, conflicts_with = "repair")]
    without_log: bool,
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct RebuildArgs {
    #[arg(long)]
    sale: SaleId,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    why: Because,
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// Differences that are shown, of each sale.
const SHOWN: usize = 50;

pub(super) async fn run(config: &Config, args: Args) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let publisher = Publisher::open(config.queue());
    let log = OrderLog::with(config.queue(), publisher.clone());
    let older_than = Duration::from_secs(args.older_than);
    let repair = Repair {
        gate: parts.gate.clone(),
        store: parts.store.clone(),
        leases: parts.leases.clone(),
        publisher,
    };
    let mut worst = Ended::Done;
    let mut shown = Vec::new();
    for sale in sales(&parts, &args).await? {
        let look = async || {
            let log = (!args.without_log).then_some(&log);
            compare(&parts.gate, &parts.store, log, &sale, older_than).await
        };
        let mut found = match look().await {
            Ok(found) => found,
            // Trouble with one sale is not the others'.
            Err(error) if args.all => {
                eprintln!("doorbuster: {sale}: {error}");
                worst = if worst == Ended::OutOfBalance { worst } else { Ended::ItemsLeft };
                continue;
            }
            Err(error) => return Err(said(error)),
        };
        let mut mended = None;
        if args.repair {
            let plan = plan(&found);
            for line in &plan {
                eprintln!("{line}");
            }
            if !plan.is_empty() && confirmed("this repairs the books", sale.as_str(), args.yes)? {
                let asked = ActRequest::by(operator(None)).because(Some("audit --repair".into()));
                let done = repair.apply(&found, &asked).await;
                if args.output == "text" {
                    print_mended(&done);
                }
                mended = Some(done);
                found = look().await.map_err(said)?;
            }
        }
        let ended = verdict(&found, mended.as_ref());
        if ended != Ended::Done && worst != Ended::OutOfBalance {
            worst = ended;
        }
        if args.output == "json" {
            shown.push(serde_json::json!({ "balances": found.balances(), "books": found, "mended": mended }));
        } else {
            print(&found);
        }
    }
    if args.output == "json" {
        println!("{}", serde_json::json!({ "audits": shown }));
    }
    Ok(worst)
}

async fn sales(parts: &Parts, args: &Args) -> Result<Vec<SaleId>, Failed> {
    if let Some(sale) = &args.sale {
        return Ok(vec![sale.clone()]);
    }
    let rows = parts.store.sales().await?;
    let opened = rows.into_iter().filter(|row| !matches!(row.state, SaleState::Draft | SaleState::Archived));
    Ok(opened.map(|row| row.sale.id).collect())
}

fn verdict(found: &Comparison, mended: Option<&Repaired>) -> Ended {
    // What was published again just now has its row in a moment.
    let on_its_way = |differs: &Difference| mended.is_some() && differs.why == DifferenceKind::Lost;
    let only_those =
        found.differences.iter().all(|differs| on_its_way(differs) || differs.why == DifferenceKind::Waiting);
    let sums = found.books.balances() || found.books.moved;
    match mended {
        _ if found.books.needs_rebuild() || !sums || !only_those => Ended::OutOfBalance,
        Some(mended) if !mended.left.is_empty() => Ended::ItemsLeft,
        // Orders that wait for long are shown, and in nobody's way.
        _ => Ended::Done,
    }
}

fn plan(found: &Comparison) -> Vec<String> {
    let mut plan: Vec<String> = found
        .differences
        .iter()
        .map(|differs| format!("{} {}: {}", differs.order_id, differs.why.as_str(), differs.why.remedy()))
        .collect();
    if found.books.needs_rebuild() {
        plan.clear();
    } else if found.differences.is_empty() && !found.books.moved {
        for item in found.books.items.iter().filter(|item| item.missing() != 0) {
            plan.push(format!("{}: change the units left in the gate by {:+}", item.sku, item.missing()));
        }
    }
    plan
}

fn print_mended(mended: &Repaired) {
    for done in &mended.done {
        println!("repaired: {done}");
    }
    for left in &mended.left {
        println!("left: {left}");
    }
}

fn print(found: &Comparison) {
    println!("{}", tell_books(&found.books));
    if found.books.needs_rebuild() {
        println!("  use `doorbuster rebuild --sale {}`", found.books.sale_id);
    }
    for item in found.books.items.iter().filter(|item| item.sold != item.live) {
        println!("  {}: the database counts {} as sold, and has {} live", item.sku, item.sold, item.live);
    }
    for differs in found.differences.iter().take(SHOWN) {
        println!(
            "  {:<15} {} of {}: {} {}",
            differs.why.as_str(),
            differs.order_id,
            differs.user_id,
            differs.quantity,
            differs.sku
        );
    }
    if found.differences.len() > SHOWN {
        println!("  and {} more: --output json has all", found.differences.len() - SHOWN);
    }
}

fn said(error: AuditError) -> Failed {
    Failed::Said(error.to_string())
}

pub(super) async fn rebuild(config: &Config, args: RebuildArgs) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let what = format!("this freezes {} and rebuilds its gate from log and database", args.sale);
    if !confirmed(&what, args.sale.as_str(), args.yes)? {
        return Ok(Ended::ItemsLeft);
    }
    let rebuild = Rebuild {
        gate: parts.gate,
        store: parts.store,
        leases: parts.leases,
        dead_letters: DeadLetters::open(config.queue()),
        log: OrderLog::open(config.queue()),
    };
    match rebuild.run(&args.sale, &args.why.asked()).await {
        Ok(rebuilt) if args.output == "json" => {
            println!("{}", serde_json::json!(rebuilt));
            return Ok(if rebuilt.unreadable == 0 { Ended::Done } else { Ended::ItemsLeft });
        }
        Ok(rebuilt) => {
            println!(
                "{} is {} again, at {}: {} users, {} orders in flight",
                rebuilt.sale_id, rebuilt.state, rebuilt.number, rebuilt.users, rebuilt.in_flight
            );
            println!("{}", tell_books(&rebuilt.books));
            if let Some(begins_at) = rebuilt.log_begins_at {
                println!(
                    "the order log begins at {begins_at}, after the sale: it lacks older orders without a row"
                );
            }
        }
        Err(RebuildError::OutOfBalance(books)) => {
            println!("{}", tell_books(&books));
            eprintln!("doorbuster: {}", RebuildError::OutOfBalance(books));
            return Ok(Ended::OutOfBalance);
        }
        Err(error) => return Err(Failed::Said(error.to_string())),
    }
    Ok(Ended::Done)
}
