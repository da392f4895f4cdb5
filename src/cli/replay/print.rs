//! The output of `doorbuster replay` for plans and runs.

use crate::cli::books::summary;
use crate::cli::ended::Ended;
use crate::cli::output::Output;
use crate::recovery::replay::{Finished, Report, Source};
use crate::store::{Run, RunState};

pub(super) fn plan(source: &Source, report: &Report, output: &Output) {
    if output.is_json() {
        say!(
            "{}",
            serde_json::json!({
                "source": source.name(), "would": report.counts, "troubles": report.troubles,
                "begins_at": report.begins_at, "sales": report.sales, "was_behind": report.was_behind,
            })
        );
    } else {
        say!("replay run {} would report:", source.name());
        print_counts(report);
    }
}

/// Prints the result of a run, and how to resume one that stopped.
pub(super) fn finished(done: Finished, output: &Output) -> Ended {
    let Finished { id, state, report } = done;
    if output.is_json() {
        say!("{}", serde_json::json!({ "id": id, "state": state, "report": report }));
    } else {
        say!("replay {id} is {}, after {:.1} s:", state.as_str(), report.seconds);
        print_counts(&report);
        for books in &report.before {
            say!("  before  {}", summary(books));
        }
        for books in &report.after {
            say!("  after   {}", summary(books));
        }
    }
    if state != RunState::Done {
        eprintln!("resume it with: doorbuster replay resume {id}");
        return Ended::ItemsLeft;
    }
    if report.out_of_balance().next().is_some() {
        return Ended::OutOfBalance;
    }
    if report.is_complete() && !report.is_still_behind() { Ended::Done } else { Ended::ItemsLeft }
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
        (counts.vanished, "no longer in the log or the file when they were to be written"),
        (counts.quarantined, "came back too often; left on the dead-letter queue"),
    ] {
        if count > 0 {
            say!("  {count:>9} {what}");
        }
    }
    if counts.orders() + counts.others + counts.parked + counts.left() == 0 {
        say!("          nothing to do");
    }
    for trouble in &report.troubles {
        say!("  left: {trouble}");
    }
    if let Some(begins_at) = report.begins_at {
        say!("  the log begins at {begins_at}, later than requested: earlier entries are missing");
    }
    match report.line {
        Some(line) if report.loss_accepted => {
            say!(
                "  the database was behind and counts as up to date now, on line {line}: the rest was accepted as lost"
            );
        }
        Some(line) => say!("  the database was behind and is up to date now, on line {line}"),
        None if report.was_behind => {
            say!("  the database is behind; a run of the whole log that leaves nothing brings it up to date")
        }
        None => {}
    }
}

pub(super) fn list(runs: &[Run], output: &Output) {
    if output.is_json() {
        say!("{}", serde_json::json!({ "replays": runs.iter().map(json).collect::<Vec<_>>() }));
        return;
    }
    if runs.is_empty() {
        say!("no replay yet");
        return;
    }
    say!("{:<36} {:<12} {:<9} {:<24} BY", "ID", "SOURCE", "STATE", "BEGAN");
    for run in runs {
        say!("{:<36} {:<12} {:<9} {:<24} {}", run.id, run.source, run.state.as_str(), run.at, run.by);
    }
}

pub(super) fn status(run: &Run, output: &Output) {
    if output.is_json() {
        say!("{}", json(run));
        return;
    }
    say!("replay   {}", run.id);
    say!("source   {}", run.source);
    say!("state    {}{}", run.state.as_str(), if run.cancel_asked { ", asked to stop" } else { "" });
    say!("by       {}", run.by);
    say!("began    {}", run.at);
    say!("updated  {}", run.updated_at);
    if let Some(ended_at) = run.ended_at {
        say!("ended    {ended_at}");
    }
    let report: Option<Report> = run.report.as_deref().and_then(|report| serde_json::from_str(report).ok());
    if let Some(report) = report {
        print_counts(&report);
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
