//! `replay`: after an outage, writes the missing rows of accepted orders.

mod args;
mod print;

pub(super) use self::args::Verb;
use super::confirm::confirmed;
use super::ended::{Ended, Failed};
use super::reading::Reading;
use super::terms::operator;
use crate::process::{Config, Parts, signal};
use crate::queue::{DeadLetters, OrderLog, Publisher};
use crate::recovery::replay::{Progress, Replay, ReplayError};

/// Replays in one listing.
const LISTED: u64 = 1_000;

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    match verb {
        Verb::List(output) => print::list(&parts.store.runs(LISTED).await?, &output),
        Verb::Status { id, output } => {
            let run = parts.store.run(id).await?.ok_or(ReplayError::NotFound(id))?;
            print::status(&run, &output);
        }
        Verb::Cancel { id } => {
            if !parts.store.cancel_run(id).await? {
                return Err(Failed::Other(format!("no replay {id} is running")));
            }
            say!("{id} was asked to stop");
        }
        Verb::Plan(what) => {
            let output = what.output.clone();
            let request = what.request()?;
            let replay = replay(config, parts);
            let report =
                with_bar(async |progress| replay.plan(&request, &progress, signal::stop_token()).await)
                    .await?;
            print::plan(&request.source, &report, &output);
            return Ok(if report.is_complete() { Ended::Done } else { Ended::ItemsLeft });
        }
        Verb::Run { what, yes } => {
            let output = what.output.clone();
            let request = what.request()?;
            let source = request.source.name();
            let what = match request.accept_loss {
                true => "this replays the log, and whatever it lacks counts as lost afterwards".to_owned(),
                false => format!("this replays the {source}"),
            };
            if !confirmed(&what, source, yes)? {
                return Ok(Ended::ItemsLeft);
            }
            let (replay, by) = (replay(config, parts), operator(None));
            let done =
                with_bar(async |progress| replay.run(&request, &by, &progress, signal::stop_token()).await)
                    .await?;
            return Ok(print::finished(done, &output));
        }
        Verb::Resume { id, output } => {
            let replay = replay(config, parts);
            let done =
                with_bar(async |progress| replay.resume(id, &progress, signal::stop_token()).await).await?;
            return Ok(print::finished(done, &output));
        }
    }
    Ok(Ended::Done)
}

fn replay(config: &Config, parts: Parts) -> Replay {
    let publisher = Publisher::open(config.queue());
    Replay {
        gate: parts.gate,
        store: parts.store,
        leases: parts.leases,
        dead_letters: DeadLetters::open(config.queue()),
        log: OrderLog::with(config.queue(), publisher.clone()),
        publisher,
    }
}

async fn with_bar<T>(
    work: impl AsyncFnOnce(Progress<'_>) -> Result<T, ReplayError>,
) -> Result<T, ReplayError> {
    let reading = Reading::of_unknown();
    let advance = |done: u64, of: u64| reading.reach_of("orders", done, of);
    let read = |stage: &'static str, done: u64| reading.reach(stage, done);
    let say = |text: &str| reading.say(text);
    let done = work(Progress { advance: &advance, read: &read, say: &say }).await;
    reading.end();
    done
}
