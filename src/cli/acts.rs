//! `acts`: what operators have done.

use super::ended::{Ended, Failed};
use super::output::Output;
use crate::control::Control;
use crate::process::{Config, Parts};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many to list.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    limit: u64,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(config: &Config, args: &Args) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let acts = Control::new(parts.gate, parts.store).latest_acts(args.limit).await?;
    if args.output.is_json() {
        say!("{}", serde_json::json!({ "acts": acts }));
        return Ok(Ended::Done);
    }
    if acts.is_empty() {
        say!("no operator has acted yet");
        return Ok(Ended::Done);
    }
    say!("{:<25} {:<18} {:<36} {:<20} RESULT", "AT", "ACT", "SUBJECT", "BY");
    for act in acts {
        let result = act.result.as_deref().unwrap_or("outcome unknown");
        let reason = act.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        say!("{:<25} {:<18} {:<36} {:<20} {result}{reason}", act.at, act.kind, act.subject, act.by);
    }
    Ok(Ended::Done)
}
