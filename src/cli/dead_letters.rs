//! `dead-letters`: what no worker could process, and its end.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Ended, Failed};
use crate::control::{DeadLetterActs, DeadLetterEnd, DeadLetterError, dead_letter_json};
use crate::process::Parts;
use crate::process::config::Config;
use crate::queue::{DeadLetter, DeadLetters};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List them, the oldest first.
    List(Output),
    /// Show one, with the message byte for byte.
    Show {
        /// As `list` shows it: the id of its order.
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// Give them to the workers again, after what was wrong has been mended.
    Replay(Which),
    /// End their orders: the buyer reads `failed`, and the units are on sale again.
    Fail(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct Output {
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

#[derive(Debug, clap::Args)]
#[group(required = true)]
pub(super) struct Which {
    /// As `list` shows them.
    ids: Vec<String>,
    /// All that are there now.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

/// How long the broker may take to be reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let letters = DeadLetters::open(config.queue());
    let dead = DeadLetterActs::new(letters.clone(), parts.gate.clone(), parts.store.clone());
    match verb {
        Verb::List(output) => {
            let letters = dead.list().await.map_err(said)?;
            print_list(&letters, &output);
            Ok(Ended::Done)
        }
        Verb::Show { id, output } => {
            print_one(&dead.show(&id).await.map_err(said)?, &output);
            Ok(Ended::Done)
        }
        Verb::Replay(which) => {
            tokio::time::timeout(CONNECT_WITHIN, letters.wait_until_up()).await.map_err(|_| {
                Failed::Said(format!("the broker could not be reached within {CONNECT_WITHIN:?}"))
            })?;
            each(&dead, which, async |id| dead.replay(id).await).await
        }
        Verb::Fail(which) => each(&dead, which, async |id| dead.fail(id).await).await,
    }
}

/// Says of each what became of it. Exit code 3 where some are left.
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
            // A page at a time; one that is left is not tried twice.
            ids = dead.list().await.map_err(said)?.into_iter().map(|letter| letter.id).collect();
            ids.retain(|id| !seen.contains(id));
        }
        if ids.is_empty() {
            break;
        }
        for id in std::mem::take(&mut ids) {
            // A letter may lie there twice.
            if !seen.insert(id.clone()) {
                continue;
            }
            match act(&id).await {
                Ok(end) => {
                    done += 1;
                    println!("{id}  {}", tell(end));
                }
                Err(error) => {
                    left += 1;
                    println!("{id}  left: {error}");
                }
            }
        }
    }
    println!("{done} done, {left} left");
    Ok(if left == 0 { Ended::Done } else { Ended::ItemsLeft })
}

fn tell(end: DeadLetterEnd) -> &'static str {
    match end {
        DeadLetterEnd::Replayed => "replayed: a worker takes it again",
        DeadLetterEnd::Failed => "failed: its units are on sale again",
        DeadLetterEnd::EndedBefore => "removed: its order had ended before, and stays so",
        DeadLetterEnd::Discarded => {
            "removed: unreadable; an accepted order in it comes again from the outbox"
        }
    }
}

fn print_list(letters: &[DeadLetter], output: &Output) {
    if output.output == "json" {
        let letters: Vec<_> = letters.iter().map(|letter| dead_letter_json(letter, false)).collect();
        println!("{}", serde_json::json!({ "dead_letters": letters }));
        return;
    }
    if letters.is_empty() {
        println!("no dead letters");
        return;
    }
    println!("{:<36}  {:<14}  {:>8}  {:<24}  FIRST ERROR", "ID", "REASON", "ATTEMPTS", "SINCE");
    for letter in letters {
        println!(
            "{:<36}  {:<14}  {:>8}  {:<24}  {}",
            letter.id,
            letter.reason,
            letter.attempts,
            letter.since.map_or("-".into(), |since| since.to_string()),
            first_line(letter),
        );
    }
}

/// What fits a terminal; `show` has all of it.
fn first_line(letter: &DeadLetter) -> String {
    let error = letter.first_error.as_deref().unwrap_or("-");
    error.lines().next().unwrap_or_default().chars().take(80).collect()
}

fn print_one(letter: &DeadLetter, output: &Output) {
    if output.output == "json" {
        println!("{}", dead_letter_json(letter, true));
        return;
    }
    println!("id           {}", letter.id);
    println!("reason       {}", letter.reason);
    println!("attempts     {}", letter.attempts);
    println!("since        {}", letter.since.map_or("-".into(), |since| since.to_string()));
    println!("first error  {}", letter.first_error.as_deref().unwrap_or("-"));
    println!("last error   {}", letter.last_error.as_deref().unwrap_or("-"));
    match &letter.orders {
        Ok(orders) => {
            for order in orders {
                println!(
                    "order        {} of {}: {} {} in {}",
                    order.id, order.user, order.quantity, order.sku, order.sale
                );
            }
        }
        Err(why) => println!("unreadable   {why}"),
    }
    println!("payload      {}", String::from_utf8_lossy(&letter.payload));
}

fn said(error: DeadLetterError) -> Failed {
    Failed::Said(error.to_string())
}
