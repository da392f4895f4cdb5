//! `drill chaos`: a private stack under attack.

use std::time::Duration;

use super::args::Args;
use super::exit::verdict;
use crate::cli::ended::{Ended, Failed};
use crate::process::{Sources, signal};
use crate::rehearsal::chaos::{self, ChaosPlan, ChaosReport, MOST_SALES, SaleReport};
use crate::rehearsal::drill::Progress;
use crate::rehearsal::judge::{Case, CaseError};
use crate::rehearsal::servers::{Folder, Kind};

/// The defaults of the options.
const FAULTS: u32 = 100;
const LOSS_EVERY: u32 = 10;
const SECONDS: u32 = 300;
const ORDERS: i64 = 30_000;

pub(super) async fn chaos(sources: &Sources, args: &Args) -> Result<Ended, Failed> {
    let plan = plan(sources, args)?;
    // Printed first, so that the attack can be repeated however it ends.
    eprintln!("  the same again: {}", again(&plan));
    let folder = Folder::ephemeral()?;
    let stop = signal::stop_token();
    let report = Box::pin(chaos::run(folder.path(), &plan, &Progress::on_stderr(), &stop)).await;
    // Without a verdict, the logs of the processes are all that there is.
    if args.chaos.keep || (report.is_err() && !stop.is_cancelled()) {
        eprintln!("  kept: {}", folder.keep().display());
    }
    let (report, cases) = report.map_err(|error| Failed::Other(error.to_string()))?;
    let ended = verdict(report.balances(), report.is_complete());
    if !(report.balances() && report.is_complete()) {
        keep(&plan, &report, &cases).map_err(|error| Failed::Other(error.to_string()))?;
    }
    if args.output.is_json() {
        say!("{}", serde_json::json!(report));
    } else {
        say!("{report}");
    }
    Ok(ended)
}

/// Keeps what somebody else needs to judge a drill that failed: the command, the report, and the cases of the sales that
/// failed, or of all if none did.
fn keep(plan: &ChaosPlan, report: &ChaosReport, cases: &[Case]) -> Result<(), CaseError> {
    let name = format!("doorbuster-case-{}-{:08x}", plan.seed, rand::random::<u32>());
    let folder = std::env::temp_dir().join(name);
    let failed = |sale: &SaleReport| !(sale.balances() && sale.is_complete());
    let any_failed = report.sales.iter().any(failed);
    for (sale, case) in report.sales.iter().zip(cases) {
        if failed(sale) || !any_failed {
            let of_sale = folder.join(&case.sale.id);
            case.keep(&of_sale)?;
            eprintln!("  the case of {} again: doorbuster drill judge {}", case.sale.id, of_sale.display());
        }
    }
    let file = folder.join("drill.txt");
    let text = format!("{}\n\n{report}\n", again(plan));
    std::fs::write(&file, text).map_err(|why| CaseError::File { file: file.display().to_string(), why })
}

fn plan(sources: &Sources, args: &Args) -> Result<ChaosPlan, Failed> {
    let crowd = [args.buyers, args.rate, args.connections, args.settle_within];
    if args.url.is_some() || crowd.iter().any(Option::is_some) {
        let why = "drill chaos attacks a private stack with its own crowd: leave out --url, --operations, \
                   --buyers, --rate, --connections and --settle-within";
        return Err(Failed::Usage(why.into()));
    }
    let seconds = args.chaos.seconds.unwrap_or(SECONDS);
    let faults = args.chaos.faults.unwrap_or(FAULTS);
    Ok(ChaosPlan {
        seed: args.chaos.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        faults: faults as usize,
        losses: args.chaos.losses.unwrap_or(faults / LOSS_EVERY) as usize,
        orders: args.units.unwrap_or(ORDERS),
        sales: args.chaos.sales.map_or(MOST_SALES, usize::from),
        lasts: Duration::from_secs(u64::from(seconds)),
        database: args.database().unwrap_or(Kind::Postgres),
        follow_up: !args.chaos.plain,
        other: args.chaos.other.clone(),
        settings: sources.overrides.clone(),
    })
}

/// The command that inflicts the same faults.
fn again(plan: &ChaosPlan) -> String {
    let other = plan.other.as_deref().map(|other| format!(" --other {}", other.display()));
    let settings: String = plan.settings.iter().map(|pair| format!(" --set '{pair}'")).collect();
    format!(
        "doorbuster drill chaos --seed {} --faults {} --losses {} --seconds {} --units {} --sales {} --database {}{}{}\
         {settings}",
        plan.seed,
        plan.faults,
        plan.losses,
        plan.lasts.as_secs(),
        plan.orders,
        plan.sales,
        plan.database.name(),
        if plan.follow_up { "" } else { " --plain" },
        other.unwrap_or_default()
    )
}
