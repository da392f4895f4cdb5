//! `bench`: how fast Doorbuster is, next to the raw speed of its servers.

use super::ended::{Ended, Failed};
use super::output::{Output, print};
use crate::process::log;
use crate::rehearsal::bench;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Each step of an order next to its ceiling: HTTP, gate, publisher, worker, stores, memory. All parts take
    /// about ten minutes.
    #[command(
        after_help = "Example:\n  doorbuster bench speed\n  doorbuster bench speed refusals backlog --output json"
    )]
    Speed {
        /// Measure only these parts.
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
        #[command(flatten)]
        output: Output,
    },
    /// The bare HTTP route that the front is compared with, on a port of 127.0.0.1.
    #[command(hide = true, after_help = "Example:\n  doorbuster bench bare-http 8090")]
    BareHttp { port: u16 },
    /// Leases: take and release, renew, wake, batches. Takes about a minute and a half.
    #[command(after_help = "Example:\n  doorbuster bench lease")]
    Lease {
        #[command(flatten)]
        output: Output,
    },
    /// Recovery with a large sale, made in bulk: rebuild, audit, export, replay; their time and memory, and what another
    /// sale's buyers notice. Takes about a minute or two per million orders.
    #[command(after_help = "Example:\n  doorbuster bench size --orders 1000000")]
    Size {
        /// Orders of the large sale.
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
        orders: u64,
        #[command(flatten)]
        output: Output,
    },
    /// Replaying the payments and the ends of many orders into a database that was set back; also where each of its
    /// answers takes 5 ms. Takes about ten minutes per million orders.
    #[command(after_help = "Example:\n  doorbuster bench restore --orders 1000000")]
    Restore {
        /// Orders that are brought up to date.
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
        orders: u64,
        /// Measures one replay in place of four: payments, next to the database. Ten million orders take about an hour.
        #[arg(long)]
        payments_only: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Replaying the order log, next to the workers' ordinary rate. Takes about a minute.
    #[command(after_help = "Example:\n  doorbuster bench replay")]
    Replay {
        #[command(flatten)]
        output: Output,
    },
}

/// Ends with exit code 3 if a figure misses its target, 1 if something could not be measured.
pub(super) async fn run(verb: Verb) -> Result<Ended, Failed> {
    log::start_with("text", "warn");
    if cfg!(debug_assertions) {
        eprintln!("doorbuster: this is a debug build; its figures mean nothing");
    }
    let failed = |error: bench::BenchError| Failed::Other(error.to_string());
    let show = |step: &str| eprintln!("doorbuster: {step}");
    let (report, output) = match verb {
        Verb::BareHttp { port } => {
            bench::bare_http(port).await.map_err(|error| Failed::Other(error.to_string()))?;
            return Ok(Ended::Done);
        }
        Verb::Speed { parts, output } => (Box::pin(bench::speed(&parts, show)).await, output),
        Verb::Lease { output } => (bench::lease(show).await, output),
        Verb::Size { orders, output } => (Box::pin(bench::size(orders, show)).await, output),
        Verb::Restore { orders, payments_only, output } => {
            let extent = if payments_only { bench::Extent::PaymentsNextDoor } else { bench::Extent::Whole };
            (Box::pin(bench::restore(orders, extent, show)).await, output)
        }
        Verb::Replay { output } => (Box::pin(bench::replay(show)).await, output),
    };
    let report = report.map_err(failed)?;
    if output.is_json() {
        say!("{}", serde_json::json!(report));
    } else {
        print(&report);
    }
    if let Some(why) = report.unfinished {
        return Err(Failed::Other(format!("not finished: {why}")));
    }
    let met = report.figures.iter().all(bench::Figure::is_met);
    Ok(if met { Ended::Done } else { Ended::ItemsLeft })
}
