//! The options of `doorbuster replay`.

use std::path::PathBuf;

use uuid::Uuid;

use crate::cli::ended::Failed;
use crate::cli::output::Output;
use crate::cli::time;
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::recovery::replay::{Filter, ReplayRequest, Source};

#[derive(Debug, clap::Subcommand)]
pub(in crate::cli) enum Verb {
    /// Show what a run would do now. Changes nothing.
    #[command(after_help = "Example:\n  doorbuster replay plan log --sale shoes --since 2h")]
    Plan(What),
    /// Replay. Idempotent: a row that is present already changes only where the source has a later state of it.
    #[command(
        after_help = "Example:\n  doorbuster replay run outbox\n  doorbuster replay run file shoes.jsonl --yes"
    )]
    Run {
        #[command(flatten)]
        what: What,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Resume a replay that was stopped, or whose process died.
    #[command(after_help = "Example:\n  doorbuster replay resume 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Resume {
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
    /// Show the progress of a replay, or its result.
    #[command(after_help = "Example:\n  doorbuster replay status 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Status {
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
    /// List the replays, newest first.
    #[command(after_help = "Example:\n  doorbuster replay list")]
    List(Output),
    /// Ask a running replay to stop. Its changes stay.
    #[command(after_help = "Example:\n  doorbuster replay cancel 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d")]
    Cancel { id: Uuid },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Accepted orders without a row: published again.
    Outbox,
    /// Messages that no worker could process: published again.
    DeadLetters,
    /// The order log: rows are restored from it.
    Log,
    /// A file that `export` wrote: rows are restored from it.
    File,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct What {
    /// Where the orders come from.
    source: Kind,
    /// The file to read, if the source is `file`.
    #[arg(required_if_eq("source", "file"))]
    file: Option<PathBuf>,
    /// Only this sale.
    #[arg(long)]
    sale: Option<SaleId>,
    /// Only this user.
    #[arg(long)]
    user: Option<UserId>,
    /// Only this order.
    #[arg(long)]
    order: Option<OrderId>,
    /// Only dead letters with this reason, such as broken or delivery_limit.
    #[arg(long)]
    reason: Option<String>,
    /// Where to start: a time such as 2030-05-01T12:00:00Z, or how long ago: 90s, 15m, 2h, 3d. In the log, by default
    /// the database's own position.
    #[arg(long, value_parser = time::parse)]
    since: Option<Millis>,
    /// Where to start in the log, instead of a time: the number of a message, as reported for unreadable ones.
    #[arg(long, conflicts_with = "since")]
    offset: Option<u64>,
    /// Where to end: the same forms as for --since.
    #[arg(long, value_parser = time::parse)]
    until: Option<Millis>,
    /// At most this many orders.
    #[arg(long)]
    limit: Option<u64>,
    /// At most this many orders per second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Stop publishing while more orders than this wait in the queue.
    #[arg(long, default_value_t = 10_000)]
    max_queue: u32,
    /// After a batch that took the database more than this many milliseconds, pause for as long as it took.
    #[arg(long, default_value_t = 1_000)]
    max_latency: u64,
    /// Skip dead letters that have been replayed this many times already.
    #[arg(long, default_value_t = 3)]
    max_replays: u32,
    /// After a replay of the log, take the database as up to date although something is missing: what the log no
    /// longer has, and orders that are left, are lost then.
    #[arg(long)]
    accept_loss: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

impl What {
    pub(super) fn request(self) -> Result<ReplayRequest, Failed> {
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
            accept_loss: self.accept_loss,
        })
    }
}
