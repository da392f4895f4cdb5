//! `dead-letters`: the messages that no worker could process: list them, replay them, fail their orders.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ended::{Ended, Failed};
use super::output::Output;
use super::terms::Reason;
use crate::control::{DeadLetterActs, DeadLetterEnd, DeadLetterError, DeadLetterJson};
use crate::process::{Config, Parts};
use crate::queue::{DeadLetter, DeadLetters};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List them, oldest first.
    #[command(after_help = "Example:\n  doorbuster dead-letters list --output json")]
    List(Output),
    /// Show one, with the message byte for byte.
    #[command(after_help = "Example:\n  doorbuster dead-letters show 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Show {
        /// The id that `list` shows: that of its order.
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// Return them to the workers, once the cause is fixed.
    #[command(after_help = "Example:\n  doorbuster dead-letters replay --all")]
    Replay(Decision),
    /// Fail their orders: buyers see `failed`, and the units are on sale again.
    #[command(after_help = "Example:\n  doorbuster dead-letters fail 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Fail(Decision),
}

#[derive(Debug, clap::Args)]
#[group(required = true)]
pub(super) struct Which {
    /// The ids that `list` shows.
    ids: Vec<String>,
    /// Every dead letter that exists now.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Decision {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    reason: Reason,
}

/// How long connecting to the broker may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let letters = DeadLetters::open(config.queue());
    let dead = DeadLetterActs::new(letters.clone(), parts.gate.clone(), parts.store.clone());
    match verb {
        Verb::List(output) => {
            print_list(&dead.list().await?, &output);
            Ok(Ended::Done)
        }
        Verb::Show { id, output } => {
            print_one(&dead.show(&id).await?, &output);
            Ok(Ended::Done)
        }
        Verb::Replay(Decision { which, reason }) => {
            tokio::time::timeout(CONNECT_WITHIN, letters.wait_until_up()).await.map_err(|_| {
                Failed::Other(format!("the broker could not be reached within {CONNECT_WITHIN:?}"))
            })?;
            let request = reason.request();
            each(&dead, which, async |id| dead.replay(id, &request).await).await
        }
        Verb::Fail(Decision { which, reason }) => {
            let request = reason.request();
            each(&dead, which, async |id| dead.fail(id, &request).await).await
        }
    }
}

/// Prints the outcome of each dead letter. Ends with exit code 3 if some are left.
async fn each(
    dead: &DeadLetterActs,
    which: Which,
    act: impl AsyncFn(&str) -> Result<DeadLetterEnd, DeadLetterError>,
) -> Result<Ended, Failed> {
    let (mut done, mut left) = (0, 0);
    let mut seen = BTreeSet::new();
    let mut ids = which.ids;
    loop {
        if which.all {
            // A page at a time; a dead letter that stays is not tried again.
            ids = dead.list().await?.into_iter().map(|letter| letter.id).collect();
            ids.retain(|id| !seen.contains(id));
        }
        if ids.is_empty() {
            break;
        }
        for id in std::mem::take(&mut ids) {
            // The queue may hold a dead letter twice.
            if !seen.insert(id.clone()) {
                continue;
            }
            match act(&id).await {
                Ok(end) => {
                    done += 1;
                    say!("{id}  {}", outcome(end));
                }
                Err(error) => {
                    left += 1;
                    say!("{id}  left: {error}");
                }
            }
        }
    }
    say!("{done} done, {left} left");
    Ok(if left == 0 { Ended::Done } else { Ended::ItemsLeft })
}

fn outcome(end: DeadLetterEnd) -> &'static str {
    match end {
        DeadLetterEnd::Replayed => "replayed: back in the workers' queue",
        DeadLetterEnd::Failed => "failed: its units are on sale again",
        DeadLetterEnd::EndedBefore => "removed: its order had ended before; left as it is",
        DeadLetterEnd::Discarded => "removed: unreadable; the outbox publishes an accepted order in it again",
    }
}

fn print_list(letters: &[DeadLetter], output: &Output) {
    if output.is_json() {
        let letters: Vec<_> = letters.iter().map(DeadLetterJson::listed).collect();
        say!("{}", serde_json::json!({ "dead_letters": letters }));
        return;
    }
    if letters.is_empty() {
        say!("no dead letters");
        return;
    }
    say!("{:<36}  {:<14}  {:>8}  {:<24}  FIRST ERROR", "ID", "REASON", "ATTEMPTS", "SINCE");
    for letter in letters {
        say!(
            "{:<36}  {:<14}  {:>8}  {:<24}  {}",
            letter.id,
            letter.reason,
            letter.attempts,
            letter.since.map_or("-".into(), |since| since.to_string()),
            first_line(letter),
        );
    }
}

/// As much as fits on a line of a terminal; `show` prints all of it.
fn first_line(letter: &DeadLetter) -> String {
    let error = letter.first_error.as_deref().unwrap_or("-");
    error.lines().next().unwrap_or_default().chars().take(80).collect()
}

fn print_one(letter: &DeadLetter, output: &Output) {
    if output.is_json() {
        say!("{}", serde_json::json!(DeadLetterJson::whole(letter)));
        return;
    }
    say!("id           {}", letter.id);
    say!("reason       {}", letter.reason);
    say!("attempts     {}", letter.attempts);
    say!("since        {}", letter.since.map_or("-".into(), |since| since.to_string()));
    say!("first error  {}", letter.first_error.as_deref().unwrap_or("-"));
    say!("last error   {}", letter.last_error.as_deref().unwrap_or("-"));
    match &letter.orders {
        Ok(orders) => {
            for order in orders {
                say!(
                    "order        {} of {}: {} {} in {}",
                    order.id,
                    order.user,
                    order.quantity,
                    order.sku,
                    order.sale
                );
            }
        }
        Err(why) => say!("unreadable   {why}"),
    }
    say!("payload      {}", String::from_utf8_lossy(&letter.payload));
}
