//! `audit`: checks whether the books balance, and repairs them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::books::summary;
use super::confirm::confirmed_unless;
use super::ended::{Ended, Failed};
use super::output::Output;
use super::reading::Reading;
use super::terms::operator;
use crate::audit::AuditError;
use crate::control::recorded;
use crate::domain::{ActRequest, SaleId, SaleState};
use crate::process::{Config, Parts, signal};
use crate::queue::{OrderLog, Publisher};
use crate::recovery::{
    Compare, Comparison, Difference, DifferenceKind, MOST_SUSPECTS, Repair, Repaired, compare,
};
use crate::settlement::{SettlementError, compare_places};
use crate::store::{Behind, StoreError};

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["sale", "all"])))]
pub(super) struct Args {
    #[arg(long)]
    sale: Option<SaleId>,
    /// Every sale that was opened and is not archived.
    #[arg(long)]
    all: bool,
    /// Show the repairs, ask for confirmation, and apply them.
    #[arg(long)]
    repair: bool,
    /// Do not ask for confirmation.
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Repair also orders of which the order log does not show that nothing became of them: they end as expired.
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// Ignore orders accepted in the last seconds: they are still being processed.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    older_than: u64,
    /// Do not search the order log for orders that only the gate knows.
    #[arg(long, conflicts_with = "repair")]
    without_log: bool,
    #[command(flatten)]
    output: Output,
}

/// Differences to show per sale.
const SHOWN: usize = 50;

pub(super) async fn run(config: &Config, args: Args) -> Result<Ended, Failed> {
    let audit = Auditing::open(config, args).await?;
    let beginning = async { Ok::<_, Failed>((audit.behind().await?, audit.sales().await?)) };
    let Some(beginning) = audit.stop.run_until_cancelled(beginning).await else {
        if audit.args.output.is_json() {
            say!("{}", serde_json::json!({ "audits": [], "database_behind": null, "stopped": true }));
        }
        return Ok(audit.stopped(Ended::Done));
    };
    let (behind, sales) = beginning?;
    let (mut worst, mut unread) = (Ended::Done, 0);
    let mut shown = Vec::new();
    if let Some(behind) = &behind {
        worst = Ended::OutOfBalance;
        eprintln!("{behind}");
    }
    if sales.is_empty() && !audit.args.output.is_json() {
        say!("no sale is open or closed: there is nothing to audit");
    }
    for sale in sales {
        let audited = match audit.one(&sale).await {
            // The database may have lost the sale as well.
            Err(Failed::Audit(AuditError::NotFound(_))) if behind.is_some() => continue,
            // An error in one sale must not stop the audit of the others.
            Err(Failed::Audit(error)) if audit.args.all => {
                eprintln!("doorbuster: {sale}: {error}");
                unread += 1;
                continue;
            }
            audited => audited?,
        };
        if let Some(audited) = audited {
            let ended = audited.verdict();
            if ended != Ended::Done && worst != Ended::OutOfBalance {
                worst = ended;
            }
            if audit.args.output.is_json() {
                shown.push(audited.json());
            } else if !audited.stopped {
                print(&audited.found);
            }
        }
        if audit.stop.is_cancelled() {
            worst = audit.stopped(worst);
            break;
        }
    }
    if audit.args.output.is_json() {
        let (behind, stopped) = (behind.is_some(), audit.stop.is_cancelled());
        say!("{}", serde_json::json!({ "audits": shown, "database_behind": behind, "stopped": stopped }));
    }
    if unread > 0 && worst != Ended::OutOfBalance {
        return Err(Failed::Other(format!("sales that could not be audited: {unread}; repeat it")));
    }
    Ok(worst)
}

struct Auditing {
    args: Args,
    parts: Parts,
    log: OrderLog,
    repair: Repair,
    stop: CancellationToken,
}

/// One sale, and its repair if there was one.
struct Audited {
    /// The last comparison: after a repair, unless it was stopped.
    found: Comparison,
    repaired: Option<Repaired>,
    /// The repair was stopped, or the comparison after it.
    stopped: bool,
}

impl Auditing {
    async fn open(config: &Config, args: Args) -> Result<Self, Failed> {
        let parts = Parts::open(config).await?;
        let publisher = Publisher::open(config.queue());
        let log = OrderLog::with(config.queue(), publisher.clone());
        let repair = Repair {
            gate: parts.gate.clone(),
            store: parts.store.clone(),
            leases: parts.leases.clone(),
            publisher,
        };
        Ok(Self { args, parts, log, repair, stop: signal::stop_token() })
    }

    async fn sales(&self) -> Result<Vec<SaleId>, Failed> {
        if let Some(sale) = &self.args.sale {
            return Ok(vec![sale.clone()]);
        }
        let rows = self.parts.store.sales().await?;
        let opened =
            rows.into_iter().filter(|row| !matches!(row.state, SaleState::Draft | SaleState::Archived));
        Ok(opened.map(|row| row.sale.id).collect())
    }

    /// Says that the audit was stopped. Returns how it ends, if it would have ended so.
    fn stopped(&self, worst: Ended) -> Ended {
        match self.args.repair {
            true => eprintln!("doorbuster: stopped; what was repaired stays: audit again"),
            false => eprintln!("doorbuster: stopped: audit again"),
        }
        if worst == Ended::OutOfBalance { worst } else { Ended::ItemsLeft }
    }

    /// `None` if it was stopped before anything was repaired.
    async fn one(&self, sale: &SaleId) -> Result<Option<Audited>, Failed> {
        let Some(mut found) = self.compare(sale).await? else { return Ok(None) };
        if self.args.accept_loss {
            found.accept_loss();
        }
        let plan = if self.args.repair { plan(&found) } else { Vec::new() };
        for line in &plan {
            eprintln!("{line}");
        }
        let (what, why) = match self.args.accept_loss {
            true => (
                "this repairs the books, and ends orders that may be good ones",
                "audit --repair --accept-loss",
            ),
            false => ("this repairs the books", "audit --repair"),
        };
        if plan.is_empty() {
            return Ok(Some(Audited { found, repaired: None, stopped: false }));
        }
        match confirmed_unless(&self.stop, (what, sale.as_str()), self.args.yes).await? {
            Some(true) => {}
            Some(false) => return Ok(Some(Audited { found, repaired: None, stopped: false })),
            None => return Ok(None),
        }
        let request = ActRequest::by(operator(None)).because(Some(why.into()));
        let repairing = async { Ok::<_, Failed>(self.repair.apply(&found, &request, &self.stop).await) };
        let describe = |repaired: &Repaired| {
            format!("{} differences repaired, {} left", repaired.done.len(), repaired.left.len())
        };
        let repaired =
            recorded(&self.parts.store, ("repair", sale.as_str()), &request, repairing, describe).await?;
        if !self.args.output.is_json() {
            print_repaired(&repaired);
        }
        // After a repair the command fails if it cannot read the books again, even with `--all`.
        let after = self.compare(sale).await.map_err(|error| Failed::Other(error.to_string()))?;
        let (stopped, repaired) = (after.is_none() || self.stop.is_cancelled(), Some(repaired));
        Ok(Some(Audited { found: after.unwrap_or(found), repaired, stopped }))
    }

    /// Whether the database lacks what it had confirmed, of any sale: it may have lost whole sales.
    async fn behind(&self) -> Result<Option<Behind>, AuditError> {
        match compare_places(&self.parts.gate, &self.parts.store).await {
            Ok(()) => Ok(None),
            Err(SettlementError::Store(StoreError::Behind(behind))) => Ok(Some(behind)),
            Err(SettlementError::Store(error)) => Err(error.into()),
            Err(SettlementError::Gate(error)) => Err(error.into()),
        }
    }

    /// `None` if it was stopped.
    async fn compare(&self, sale: &SaleId) -> Result<Option<Comparison>, AuditError> {
        let log = (!self.args.without_log).then_some(&self.log);
        let older_than = Duration::from_secs(self.args.older_than);
        let (gate, store) = (&self.parts.gate, &self.parts.store);
        let comparing = async {
            // The comparison is about the database as it is now.
            self.behind().await?;
            let reading = Reading::of(store, sale).await;
            let progress = |stage, done| reading.reach(stage, done);
            let how = Compare { gate, store, log, older_than, most: MOST_SUSPECTS, progress: &progress };
            let compared = compare(how, sale).await;
            reading.end();
            compared
        };
        self.stop.run_until_cancelled(comparing).await.transpose()
    }
}

impl Audited {
    fn verdict(&self) -> Ended {
        let Self { found, repaired, stopped } = self;
        if *stopped {
            return Ended::ItemsLeft;
        }
        // An order that the repair has published again is about to get its row.
        let queued = |difference: &Difference| repaired.is_some() && difference.why == DifferenceKind::Lost;
        let only_those = found
            .differences
            .iter()
            .all(|difference| queued(difference) || difference.why == DifferenceKind::Waiting);
        let sums = found.books.balances() || (found.books.moved && !found.books.rows_are_wrong());
        match repaired {
            _ if found.books.database_behind || found.books.needs_rebuild() => Ended::OutOfBalance,
            _ if !sums || !only_those || found.is_cut_short => Ended::OutOfBalance,
            Some(repaired) if !repaired.left.is_empty() => Ended::ItemsLeft,
            // Orders that have waited for long are shown, but they are not an error.
            _ => Ended::Done,
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "balances": self.found.balances(), "books": self.found, "mended": self.repaired,
        })
    }
}

fn plan(found: &Comparison) -> Vec<String> {
    // A repair by the rows of a database that is behind would end good orders.
    if found.books.database_behind || found.books.needs_rebuild() {
        return Vec::new();
    }
    let mut plan: Vec<String> = found
        .differences
        .iter()
        .map(|difference| {
            let why = difference.why;
            format!("{} {}: {}", difference.order_id, why.as_str(), why.remedy())
        })
        .collect();
    if found.differences.is_empty() && !found.books.moved {
        for item in found.books.items.iter().filter(|item| item.missing() != 0) {
            plan.push(format!("{}: change the units left in the gate by {:+}", item.sku, item.missing()));
        }
    }
    plan
}

fn print_repaired(repaired: &Repaired) {
    for done in &repaired.done {
        say!("repaired: {done}");
    }
    for left in &repaired.left {
        say!("left: {left}");
    }
}

fn print(found: &Comparison) {
    say!("{}", summary(&found.books));
    if found.books.database_behind {
        say!("  use `doorbuster replay run log`");
        // Most of them are in the order log: to list each as lost would alarm for nothing.
        if !found.differences.is_empty() {
            say!("  until then {} orders differ: --output json shows them", found.differences.len());
        }
        return;
    }
    if found.books.needs_rebuild() {
        say!("  use `doorbuster rebuild --sale {}`", found.books.sale_id);
    }
    for item in found.books.items.iter().filter(|item| item.sold != item.live) {
        say!("  {}: the database counts {} sold, but {} live", item.sku, item.sold, item.live);
    }
    for difference in found.differences.iter().take(SHOWN) {
        say!(
            "  {:<15} {} of {}: {} {}",
            difference.why.as_str(),
            difference.order_id,
            difference.user_id,
            difference.quantity,
            difference.sku
        );
    }
    if found.differences.len() > SHOWN {
        say!("  and {} more: --output json shows all", found.differences.len() - SHOWN);
    }
    if found.is_cut_short {
        say!("  so many orders differ that the rest was not read: repair these, and audit again");
    }
}
