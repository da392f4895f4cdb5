//! `payment`: the events that payment providers have sent.

use super::ended::{Ended, Failed};
use super::output::Output;
use crate::process::{Config, Parts};
use crate::store::PaymentState;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the events in one state, newest first. Without --state: those that came too late.
    #[command(after_help = "Example:\n  doorbuster payment list --state mismatch")]
    List {
        /// pending, applied, late, retaken, refunded or mismatch.
        #[arg(long, default_value = "late")]
        state: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Events in one listing.
const LISTED: u64 = 1_000;

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let Verb::List { state, output } = verb;
    let states = PaymentState::ALL.map(PaymentState::as_str).join(", ");
    let state = PaymentState::ALL
        .into_iter()
        .find(|known| known.as_str() == state)
        .ok_or_else(|| Failed::Usage(format!("--state {state}: it must be one of {states}")))?;
    let parts = Parts::open(config).await?;
    let payments = parts.store.payments(state, LISTED).await?;
    if output.is_json() {
        say!("{}", serde_json::json!({ "payments": payments }));
        return Ok(Ended::Done);
    }
    if payments.is_empty() {
        say!("no payment is {}", state.as_str());
        return Ok(Ended::Done);
    }
    say!("{:<36} {:<10} {:<25} {:<12} {:<24} WHY", "ORDER", "KIND", "RECEIVED AT", "PROVIDER", "EVENT");
    for payment in payments {
        say!(
            "{:<36} {:<10} {:<25} {:<12} {:<24} {}",
            payment.order,
            payment.kind.as_str(),
            payment.received_at,
            payment.provider,
            payment.event_id,
            payment.detail.unwrap_or_default()
        );
    }
    Ok(Ended::Done)
}
