//! `replay`: after an outage.

use std::path::PathBuf;

use uuid::Uuid;

use super::confirm::confirmed;
use super::terms::operator;
use super::{Ended, Failed};
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::process::config::Config;
use crate::process::{Parts, signal};
use crate::queue::{DeadLetters, OrderLog, Publisher};
use crate::recovery::replay::{
    Filter, Finished, Progress, Replay, ReplayError, ReplayRequest, Report, Source,
};
use crate::rehearsal::drill::Progress as Bar;
use crate::store::{Run, RunState};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Say what a run would do now. Changes nothing.
    Plan(What),
    /// Replay. May be repeated: what is there already is left as it is.
    Run {
        #[command(flatten)]
        what: What,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Go on with one that was stopped, or whose process died.
    Resume {
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
    /// Show how far one has come, or how it ended.
    Status {
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
    /// List them, the newest first.
    List(Output),
    /// Ask one that is under way to end. What it has done stays.
    Cancel { id: Uuid },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Orders that were accepted and have no row: published again.
    Outbox,
    /// What no worker could process: published again.
    DeadLetters,
    /// The order log: rows are written as they were.
    Log,
    /// Lines as `export` writes them: rows are written as they were.
    File,
}

#[derive(Debug, clap::Args)]
pub(super) struct What {
    source: Kind,
    /// With the source `file`.
    #[arg(required_if_eq("source", "file"))]
    file: Option<PathBuf>,
    #[arg(long)]
    sale: Option<SaleId>,
    #[arg(long)]
    user: Option<UserId>,
    #[arg(long)]
    order: Option<OrderId>,
    /// Of dead letters, such as broken or delivery_limit.
    #[arg(long)]
    reason: Option<String>,
    /// A time such as 2030-05-01T12:00:00Z, or how long ago: 90s, 15m, 2h, 3d.
    #[arg(long, value_parser = time)]
    since: Option<Millis>,
    /// Of the log, in the place of a time: from this message on, as a malformed one is named.
    #[arg(long, conflicts_with = "since")]
    offset: Option<u64>,
    #[arg(long, value_parser = time)]
    until: Option<Millis>,
    /// Orders at most.
    #[arg(long)]
    limit: Option<u64>,
    /// Orders per second, at most.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Publish nothing while more orders than this wait in the queue.
    #[arg(long, default_value_t = 10_000)]
    max_queue: u32,
    /// Pause after a batch that took the database longer than this many milliseconds, for as long.
    #[arg(long, default_value_t = 1_000)]
    max_latency: u64,
    /// Leave dead letters that were replayed so often.
    #[arg(long, default_value_t = 3)]
    max_replays: u32,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(super) struct Output {
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

impl Output {
    fn is_json(&self) -> bool {
        self.output == "json"
    }
}

impl What {
    fn asked(self) -> Result<ReplayRequest, Failed> {
        let source = match (self.source, self.file) {
            (Kind::File, Some(file)) => Source::File(file),
            (_, Some(file)) => {
                return Err(Failed::Usage(format!("{}: only the source `file` has one", file.display())));
            }
            (Kind::Outbox, _) => Source::Outbox,
            (Kind::DeadLetters, _) => Source::DeadLetters,
            (Kind::Log | Kind::File, _) => Source::Log,
        };
        let filter = Filter {
            sale: self.sale,
            user: self.user,
            order: self.order,
            reason: self.reason,
            since: self.since,
            offset: self.offset,
            until: self.until,
            limit: self.limit,
        };
        Ok(ReplayRequest {
            source,
            filter,
            rate: self.rate,
            max_queue: self.max_queue,
            max_latency_ms: self.max_latency,
            max_replays: self.max_replays,
        })
    }
}

/// RFC 3339, or so long ago.
fn time(text: &str) -> Result<Millis, String> {
    let wrong =
        || format!("{text:?}: it must be a time such as 2030-05-01T12:00:00Z, or 90s, 15m, 2h, 3d ago");
    let unit = match text.chars().last() {
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        _ => return text.parse().map_err(|_| wrong()),
    };
    let count: i64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    if !(0..=100_000).contains(&count) {
        return Err(wrong());
    }
    Ok(Millis(Millis::now().0 - count * unit))
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    match verb {
        Verb::List(output) => list(&parts.store.runs(1_000).await?, &output),
        Verb::Status { id, output } => {
            let run = parts.store.run(id).await?.ok_or_else(|| said(ReplayError::NotFound(id)))?;
            status(&run, &output);
        }
        Verb::Cancel { id } => {
            if !parts.store.cancel_run(id).await? {
                return Err(Failed::Said(format!("there is no replay {id} that is under way")));
            }
            println!("{id} was asked to end");
        }
        Verb::Plan(what) => {
            let json = what.output.is_json();
            let asked = what.asked()?;
            let replay = replay(config, parts);
            let report =
                with_bar(async |progress| replay.plan(&asked, &progress, signal::stop_token()).await).await?;
            if json {
                println!(
                    "{}",
                    serde_json::json!({ "source": asked.source.name(), "would": report.counts,
                    "troubles": report.troubles, "begins_at": report.begins_at, "sales": report.sales })
                );
            } else {
                println!("{} would:", asked.source.name());
                print_counts(&report);
            }
            return Ok(if report.is_complete() { Ended::Done } else { Ended::ItemsLeft });
        }
        Verb::Run { what, yes } => {
            let output = Output { output: what.output.output.clone() };
            let asked = what.asked()?;
            let what = format!("this replays the {}", asked.source.name());
            if !confirmed(&what, asked.source.name(), yes)? {
                return Ok(Ended::ItemsLeft);
            }
            let (replay, by) = (replay(config, parts), operator(None));
            let done =
                with_bar(async |progress| replay.run(&asked, &by, &progress, signal::stop_token()).await)
                    .await?;
            return finished(done, &output);
        }
        Verb::Resume { id, output } => {
            let replay = replay(config, parts);
            let done =
                with_bar(async |progress| replay.resume(id, &progress, signal::stop_token()).await).await?;
            return finished(done, &output);
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

async fn with_bar<T>(work: impl AsyncFnOnce(Progress<'_>) -> Result<T, ReplayError>) -> Result<T, Failed> {
    let bar = Bar::on_stderr();
    bar.begin(0, "orders");
    let advance = |done: u64, of: u64| {
        bar.length(of);
        bar.reach(done);
    };
    let say = |text: &str| bar.say(text);
    let done = work(Progress { advance: &advance, say: &say }).await;
    bar.end();
    done.map_err(said)
}

fn finished(done: Finished, output: &Output) -> Result<Ended, Failed> {
    let Finished { id, state, report } = done;
    if output.is_json() {
        println!("{}", serde_json::json!({ "id": id, "state": state, "report": report }));
    } else {
        println!("replay {id} is {}, after {:.1} s:", state.as_str(), report.seconds);
        print_counts(&report);
        for books in &report.before {
            println!("  before  {}", tell_books(books));
        }
        for books in &report.after {
            println!("  after   {}", tell_books(books));
        }
    }
    if state != RunState::Done {
        eprintln!("resume it with: doorbuster replay resume {id}");
        return Ok(Ended::ItemsLeft);
    }
    if report.out_of_balance().next().is_some() {
        return Ok(Ended::OutOfBalance);
    }
    Ok(if report.is_complete() { Ended::Done } else { Ended::ItemsLeft })
}

pub(super) fn tell_books(books: &crate::audit::Audit) -> String {
    let units = |of: fn(&crate::audit::ItemBooks) -> i64| books.items.iter().map(of).sum::<i64>();
    let verdict = match (books.balances(), books.is_at_rest()) {
        _ if books.gate_lost => "IS NOT IN REDIS: rebuild it",
        _ if books.frozen => "IS FROZEN: rebuild it",
        (true, true) => "balances",
        (true, false) => "balances, with orders under way",
        (false, true) => "DOES NOT BALANCE",
        (false, false) => "is under way",
    };
    format!(
        "{} {verdict}: stock {} = left {} + in flight {} + returning {} + live {} + missing {}",
        books.sale_id,
        units(|item| item.stock),
        units(|item| item.left),
        units(|item| item.in_flight),
        units(|item| item.returning),
        units(|item| item.live),
        units(crate::audit::ItemBooks::missing),
    )
}

fn print_counts(report: &Report) {
    let counts = &report.counts;
    for (count, what) in [
        (counts.inserted, "inserted or queued"),
        (counts.changed, "brought up to date"),
        (counts.already, "already there"),
        (counts.ended, "cancelled, expired or refunded before; left unchanged"),
        (counts.failed, "failed before; left unchanged"),
        (counts.parked, "on the dead-letter queue: replay dead-letters"),
        (counts.others, "changes to sales, acts and payments"),
        (counts.refused, "refused"),
        (counts.busy, "busy: another process is acting for the user; run it again"),
        (counts.malformed, "unreadable"),
        (counts.quarantined, "came back too often; left on the dead-letter queue"),
    ] {
        if count > 0 {
            println!("  {count:>9} {what}");
        }
    }
    if counts.orders() + counts.others + counts.parked + counts.left() == 0 {
        println!("          nothing to do");
    }
    for trouble in &report.troubles {
        println!("  left: {trouble}");
    }
    if let Some(begins_at) = report.begins_at {
        println!("  the log begins at {begins_at}, later than requested: earlier entries are missing");
    }
}

fn list(runs: &[Run], output: &Output) {
    if output.is_json() {
        println!("{}", serde_json::json!({ "replays": runs.iter().map(json).collect::<Vec<_>>() }));
        return;
    }
    if runs.is_empty() {
        println!("no replay yet");
        return;
    }
    println!("{:<36} {:<12} {:<9} {:<24} BY", "ID", "SOURCE", "STATE", "BEGAN");
    for run in runs {
        println!("{:<36} {:<12} {:<9} {:<24} {}", run.id, run.source, run.state.as_str(), run.at, run.by);
    }
}

fn json(run: &Run) -> serde_json::Value {
    let parsed = |text: &Option<String>| -> serde_json::Value {
        text.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    serde_json::json!({
        "id": run.id, "source": run.source, "state": run.state, "by": run.by, "at": run.at,
        "updated_at": run.updated_at, "ended_at": run.ended_at,
        "asked": parsed(&Some(run.settings.clone())), "report": parsed(&run.report),
    })
}

fn status(run: &Run, output: &Output) {
    if output.is_json() {
        println!("{}", json(run));
        return;
    }
    println!("replay   {}", run.id);
    println!("source   {}", run.source);
    println!("state    {}{}", run.state.as_str(), if run.cancel_asked { ", asked to end" } else { "" });
    println!("by       {}", run.by);
    println!("began    {}", run.at);
    println!("told     {}", run.updated_at);
    if let Some(ended_at) = run.ended_at {
        println!("ended    {ended_at}");
    }
    let report: Option<Report> = run.report.as_deref().and_then(|report| serde_json::from_str(report).ok());
    if let Some(report) = report {
        print_counts(&report);
    }
}

fn said(error: ReplayError) -> Failed {
    match error {
        ReplayError::Usage(text) => Failed::Usage(text),
        other => Failed::Said(other.to_string()),
    }
}
