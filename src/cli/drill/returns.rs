//! `drill returns`: half of the buyers never pay, until every unit is paid for.

use super::args::Args;
use super::exit::verdict;
use super::private::with_private_stack;
use super::target::target;
use crate::cli::ended::{Ended, Failed};
use crate::process::{Sources, signal};
use crate::rehearsal::drill::{self, Plan, Progress, Returns, Target};
use crate::rehearsal::servers::{Ending, Folder, Kind, Server};

pub(super) async fn returns(sources: &Sources, args: &Args, plan: &Plan) -> Result<Ended, Failed> {
    if args.buyers.is_some() || args.rate.is_some() {
        let why = "in drill returns buyers come until every unit is paid for: leave out --buyers and --rate";
        return Err(Failed::Usage(why.into()));
    }
    let progress = Progress::on_stderr();
    let report = match target(sources, args)? {
        Some(target) => Box::pin(drill::run_returns(&target, plan, &progress, &signal::stop_token())).await?,
        None => on_private_stack(sources, args, plan, &progress).await?,
    };
    if args.output.is_json() {
        say!("{}", serde_json::json!(report));
    } else {
        say!("{report}");
    }
    Ok(verdict(report.balances(), report.is_complete()))
}

async fn on_private_stack(
    sources: &Sources,
    args: &Args,
    plan: &Plan,
    progress: &Progress,
) -> Result<Returns, Failed> {
    let work =
        async |target: &Target, stop: &_| Box::pin(drill::run_returns(target, plan, progress, stop)).await;
    let folder = Folder::ephemeral()?;
    // With SQLite the drill would measure SQLite: payments would be slower than the time that buyers have to pay.
    let server = Server::start(args.database().unwrap_or(Kind::Postgres), folder.path()).await?;
    let mut sources = sources.clone();
    sources.overrides.push(format!("database.url={}", server.url));
    let report = with_private_stack(&sources, progress, work).await;
    server.stop(Ending::AtOnce).await;
    report
}
