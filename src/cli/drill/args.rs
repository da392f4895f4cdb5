//! The options of `doorbuster drill`.

use crate::cli::output::Output;
use crate::rehearsal::servers::Kind;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The scenario.
    #[arg(value_enum)]
    pub(super) drill: Which,
    /// Judge: the folder that a failed drill has left.
    #[arg(value_name = "FOLDER")]
    pub(super) folder: Option<std::path::PathBuf>,
    /// Units of the item.
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    pub(super) units: Option<i64>,
    /// Buyers, each with their own token.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) buyers: Option<u32>,
    /// Buyers per second, instead of all at once.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: Option<u32>,
    /// Connections of the whole crowd.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) connections: Option<u32>,
    /// Seconds within which every order must be processed after the last click.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(super) settle_within: Option<u32>,
    /// Drill a running front instead of a private stack. Its auth.secret must be configured here too.
    #[arg(long, requires = "operations", value_name = "HOST:PORT")]
    pub(super) url: Option<String>,
    /// The operations listener of that stack.
    #[arg(long, requires = "url", value_name = "HOST:PORT")]
    pub(super) operations: Option<String>,
    /// Returns: seconds that buyers have to pay; 5 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(super) pay_within: Option<u32>,
    /// Rush: meanwhile an operator tries each act of live control.
    #[arg(long)]
    pub(super) live_control: bool,
    #[command(flatten)]
    pub(super) chaos: ChaosArgs,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Options of the chaos drill.
#[derive(Debug, clap::Args)]
pub(super) struct ChaosArgs {
    /// Chaos: the seed of the faults; the same seed plans the same faults. Random by default.
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Chaos: faults to inflict; 100 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(super) faults: Option<u32>,
    /// Chaos: how many of the faults lose data; a tenth by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub(super) losses: Option<u32>,
    /// Chaos: seconds under attack; 300 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=14_400))]
    pub(super) seconds: Option<u32>,
    /// Chaos: sales on which the units are; 3 by default.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub(super) sales: Option<u8>,
    /// Chaos and returns: the private database; postgres by default.
    #[arg(long, value_parser = ["postgres", "mariadb"])]
    pub(super) database: Option<String>,
    /// Chaos: another build, as which the processes begin; in the middle they are upgraded to this one.
    #[arg(long, value_name = "BINARY")]
    pub(super) other: Option<std::path::PathBuf>,
    /// Chaos: no payments, cancellations, expiries or restocks.
    #[arg(long)]
    pub(super) plain: bool,
    /// Chaos: keep the folder with all data and logs, and print its name.
    #[arg(long)]
    pub(super) keep: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum Which {
    /// 1,000 units, 2,000 buyers at once.
    Oversell,
    /// One user ten times with one key, another ten times with ten keys.
    Duplicate,
    /// 10,000 units, 5,000 requests a second for 10 seconds.
    Rush,
    /// 10,000 units, and half of the buyers never pay; runs until every unit is paid for.
    Returns,
    /// Two fronts, two workers and all servers, while a seeded nemesis breaks them.
    Chaos,
    /// Judges once more what a chaos drill has left in a folder; starts nothing.
    Judge,
}

impl Args {
    /// Is the drill against a stack that is already running?
    pub(in crate::cli) fn has_target(&self) -> bool {
        self.url.is_some()
    }

    /// The private database that was chosen.
    pub(super) fn database(&self) -> Option<Kind> {
        let name = self.chaos.database.as_deref();
        name.map(|name| if name == "mariadb" { Kind::Mariadb } else { Kind::Postgres })
    }
}
