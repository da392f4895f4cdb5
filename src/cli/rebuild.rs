//! `rebuild`: a new gate for a sale whose Redis lost writes.

use std::time::{Duration, Instant};

use super::books::summary;
use super::confirm::confirmed;
use super::ended::{Ended, Failed};
use super::output::Output;
use super::reading::Reading;
use super::terms::Reason;
use crate::audit::Progress;
use crate::domain::{ActRequest, SaleId, SaleState};
use crate::gate::Gate;
use crate::process::{Config, Parts, signal};
use crate::queue::{DeadLetters, OrderLog};
use crate::recovery::{Forgotten, Rebuild, RebuildError, Rebuilt, was_rebuilt_completely};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(long)]
    sale: SaleId,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(config: &Config, args: Args) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let what = format!("this freezes {} and rebuilds its gate from log and database", args.sale);
    if !confirmed(&what, args.sale.as_str(), args.yes)? {
        return Ok(Ended::ItemsLeft);
    }
    let stop = signal::stop_token();
    let reading = stop.run_until_cancelled(Reading::of(&parts.store, &args.sale)).await;
    let reading = reading.ok_or_else(|| Failed::from(RebuildError::Stopped(args.sale.clone())))?;
    let rebuild = Rebuild {
        gate: parts.gate,
        store: parts.store,
        leases: parts.leases,
        dead_letters: DeadLetters::open(config.queue()),
        log: OrderLog::open(config.queue()),
        unattended: false,
        stop,
    };
    let progress = |stage, done| reading.reach(stage, done);
    let rebuilt = after_others(&rebuild, &args.sale, &args.reason.request(), &progress).await;
    reading.end();
    let Some(rebuilt) = rebuilt else {
        return Ok(done_by_another(&rebuild, &args.sale, &args.output).await);
    };
    match rebuilt {
        Ok(rebuilt) => {
            match args.output.is_json() {
                true => say!("{}", serde_json::json!(rebuilt)),
                false => print(&rebuilt),
            }
            Ok(if rebuilt.is_complete() { Ended::Done } else { Ended::ItemsLeft })
        }
        Err(RebuildError::OutOfBalance(books)) => {
            match args.output.is_json() {
                true => say!("{}", serde_json::json!({ "books": books })),
                false => say!("{}", summary(&books)),
            }
            eprintln!("doorbuster: {}", RebuildError::OutOfBalance(books));
            Ok(Ended::OutOfBalance)
        }
        Err(error) => {
            say_if_frozen(&rebuild.gate, &args.sale).await;
            Err(error.into())
        }
    }
}

/// How long after the sale is open the other process may take to record what it found.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

async fn done_by_another(rebuild: &Rebuild, sale: &SaleId, output: &Output) -> Ended {
    let began = Instant::now();
    let complete = loop {
        // While the database does not answer, it is not known yet.
        let complete = was_rebuilt_completely(&rebuild.store, sale).await.ok().flatten();
        let pause = rebuild.stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(200)));
        if complete.is_some() || began.elapsed() > RECORDED_WITHIN || pause.await.is_none() {
            // A process that died just then has recorded nothing.
            break complete.unwrap_or(false);
        }
    };
    if output.is_json() {
        let by_another = serde_json::json!({
            "sale_id": sale, "by_another_process": true, "log_was_whole": complete,
        });
        say!("{by_another}");
    } else {
        say!("{} was rebuilt by another process, and is no longer frozen", sale);
        if !complete {
            say!(
                "it is not known that the order log was whole then: orders that only a missing part had may be lost \
                 (doorbuster acts)"
            );
        }
    }
    if complete { Ended::Done } else { Ended::ItemsLeft }
}

/// Says whether a rebuild that failed has left the sale frozen: nothing is sold until another one finishes.
async fn say_if_frozen(gate: &Gate, sale: &SaleId) {
    match gate.describe(sale).await {
        Ok(Some(described)) if described.state == SaleState::Frozen => {
            eprintln!("doorbuster: {sale} is frozen, and stays so until a rebuild finishes: run it again");
        }
        Ok(_) => {}
        Err(_) => eprintln!("doorbuster: if {sale} is frozen by now, it stays so until a rebuild finishes"),
    }
}

/// How long to wait for another rebuild of the sale: longer than the lease of one whose process has died.
const OTHERS_WITHIN: Duration = Duration::from_secs(120);

/// Rebuilds the sale. A front may be trying the same, and may not succeed where an operator does: it leaves a sale frozen if
/// the order log was lost shortly before. `None` if it has succeeded.
async fn after_others(
    rebuild: &Rebuild,
    sale: &SaleId,
    request: &ActRequest,
    progress: Progress<'_>,
) -> Option<Result<Rebuilt, RebuildError>> {
    let began = Instant::now();
    let mut waits = false;
    loop {
        let rebuilt = rebuild.run(sale, request, progress).await;
        if !matches!(rebuilt, Err(RebuildError::UnderWay(_))) || began.elapsed() > OTHERS_WITHIN {
            return Some(rebuilt);
        }
        if !waits {
            eprintln!("doorbuster: another rebuild of {sale} is under way; waits for it");
        }
        waits = true;
        let paused = rebuild.stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(1))).await;
        if paused.is_none() {
            return Some(Err(RebuildError::Stopped(sale.clone())));
        }
        let gate = rebuild.gate.describe(sale).await;
        if gate.is_ok_and(|gate| gate.is_some_and(|gate| gate.state != SaleState::Frozen)) {
            return None;
        }
    }
}

fn print(rebuilt: &Rebuilt) {
    say!(
        "{} is {} again, at {}, after {:.1} s: {} users, {} orders in flight",
        rebuilt.sale_id,
        rebuilt.state,
        rebuilt.number,
        rebuilt.frozen_seconds,
        rebuilt.users,
        rebuilt.in_flight
    );
    say!("{}", summary(&rebuilt.books));
    if rebuilt.unreadable > 0 {
        say!("{} entries of log and dead letters could not be read", rebuilt.unreadable);
    }
    if let Some(Forgotten { writes, orders_found }) = rebuilt.forgotten {
        say!(
            "Redis had forgotten the last {writes} writes; {orders_found} of them are orders that were found"
        );
    }
    if let Some(begins_at) = rebuilt.log_begins_at {
        say!(
            "the order log begins at {begins_at}: it lacks older entries, and with them orders that have no row yet"
        );
        if let Some(Forgotten { writes, orders_found }) = rebuilt.forgotten {
            say!(
                "of the other {} writes, some were settlements, returns or acts; the rest were orders that no server has",
                writes.saturating_sub(orders_found)
            );
        }
    }
}
