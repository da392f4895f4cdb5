//! `bench`: measures Doorbuster beside the servers' own speed.

use super::{Ended, Failed};
use crate::rehearsal::bench;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// The way of an order beside its ceilings: HTTP, gate, publisher, worker, stores, memory. All parts
    /// take about ten minutes.
    Speed {
        /// Only these parts.
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
        #[arg(long, default_value = "text", value_parser = ["text", "json"])]
        output: String,
    },
    /// The bare HTTP route that the front is compared with, on a port of 127.0.0.1.
    #[command(hide = true)]
    BareHttp { port: u16 },
    /// The lease: take and release, renewal, waking, batches. Takes about a minute and a half.
    Lease {
        #[arg(long, default_value = "text", value_parser = ["text", "json"])]
        output: String,
    },
    /// Replaying the order log, beside the workers' ordinary rate. Takes about a minute.
    Replay {
        #[arg(long, default_value = "text", value_parser = ["text", "json"])]
        output: String,
    },
}

/// Exit code 3 where a figure falls short of what is wanted, 1 where not all could be measured.
pub(super) async fn run(verb: Verb) -> Result<Ended, Failed> {
    crate::process::log::start_with("text", "warn");
    if cfg!(debug_assertions) {
        eprintln!("doorbuster: this is a debug build: its figures say nothing");
    }
    let tell = |step: &str| eprintln!("doorbuster: {step}");
    let (report, output) = match verb {
        Verb::BareHttp { port } => {
            bench::bare_http(port).await.map_err(|error| Failed::Said(error.to_string()))?;
            return Ok(Ended::Done);
        }
        Verb::Speed { parts, output } => (Box::pin(bench::speed(&parts, tell)).await, output),
        Verb::Lease { output } => (bench::lease(tell).await, output),
        Verb::Replay { output } => (Box::pin(bench::replay(tell)).await, output),
    };
    let report = report.map_err(|error| Failed::Said(error.to_string()))?;
    if output == "json" {
        println!("{}", serde_json::json!(report));
    } else {
        print!("{report}");
    }
    if let Some(why) = report.unfinished {
        return Err(Failed::Said(format!("not finished: {why}")));
    }
    let met = report.figures.iter().all(bench::Figure::is_met);
    Ok(if met { Ended::Done } else { Ended::ItemsLeft })
}
