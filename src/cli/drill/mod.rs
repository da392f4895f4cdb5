//! `drill`: a rehearsed crowd against a private stack, or a running one.

mod args;
mod chaos;
mod exit;
mod judge;
mod plan;
mod private;
mod returns;
mod target;

use std::io::IsTerminal as _;

pub(super) use self::args::Args;
use self::args::{ChaosArgs, Which};
pub(super) use self::exit::verdict;
pub(super) use self::private::on_private_stack;
use super::ended::{Ended, Failed};
use crate::process::{Sources, log, signal};
use crate::rehearsal::drill::{self, Progress};

pub(super) async fn run(sources: &Sources, args: Args) -> Result<Ended, Failed> {
    // Only where nobody watches the progress: what the nemesis and its operator did, and when.
    let level =
        if std::io::stderr().is_terminal() { "error" } else { "error,doorbuster::rehearsal::chaos=info" };
    log::start_with("auto", level);
    if matches!(args.drill, Which::Judge) {
        return judge::judge(&args);
    }
    if args.folder.is_some() {
        return Err(Failed::Usage("a folder belongs to drill judge: leave it out".into()));
    }
    if matches!(args.drill, Which::Chaos) {
        return chaos::chaos(sources, &args).await;
    }
    let ChaosArgs { seed, faults, losses, seconds, sales, database, keep, plain, other } = &args.chaos;
    let database = database.is_some() && !matches!(args.drill, Which::Returns);
    if seed.is_some()
        || faults.is_some()
        || losses.is_some()
        || seconds.is_some()
        || sales.is_some()
        || other.is_some()
        || database
        || *keep
        || *plain
    {
        let why = "--seed, --faults, --losses, --seconds, --sales, --database, --other, --plain and --keep belong to drill chaos: leave them out";
        return Err(Failed::Usage(why.into()));
    }
    let plan = plan::plan(&args)?;
    if matches!(args.drill, Which::Returns) {
        return returns::returns(sources, &args, &plan).await;
    }
    let progress = Progress::on_stderr();
    let report = match target::target(sources, &args)? {
        Some(target) => Box::pin(drill::run(&target, &plan, &progress, &signal::stop_token())).await?,
        None => on_private_stack(sources, &plan, &progress).await?,
    };
    if args.output.is_json() {
        say!("{}", serde_json::json!(report));
    } else {
        say!("{report}");
    }
    Ok(verdict(report.balances, report.complete))
}
