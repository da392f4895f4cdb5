//! The command line.

mod audit;
mod bench;
mod confirm;
mod dead_letters;
mod dev;
mod drill;
mod export;
mod health;
mod lease;
mod order;
mod payment;
mod replay;
mod sale;
mod serve;
mod servers;
mod stack;
mod terms;
mod token;
mod user;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::control::ControlError;
use crate::domain::Invalid;
use crate::process::StartError;
use crate::process::config::{Config, Mistakes, Sources};
use crate::rehearsal::servers::ServerError;
use crate::store::StoreError;

/// The flash-sale order engine: Redis decides who gets a unit, RabbitMQ carries the order, workers
/// persist it. Begin with `doorbuster dev --demo`.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done; 1 error; 2 usage; 3 finished with items left; 4 the books do not balance."
)]
pub struct Cli {
    #[command(flatten)]
    sources: SourceArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, clap::Args)]
struct SourceArgs {
    /// Read config/<PROFILE>.toml over the defaults.
    #[arg(long, global = true)]
    profile: Option<String>,
    /// Read this file over the profile.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, over everything else. May be repeated.
    #[arg(long = "set", global = true, value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Everything on this machine: private servers, a front and a worker.
    Dev(dev::Args),
    /// Serve buyers.
    Front,
    /// Persist orders.
    Worker,
    /// Create or upgrade the tables.
    Migrate,
    /// Create and steer sales.
    #[command(subcommand)]
    Sale(sale::Verb),
    /// See what became of an order, and change it.
    #[command(subcommand)]
    Order(order::Verb),
    /// See what payment providers have told.
    #[command(subcommand)]
    Payment(payment::Verb),
    /// Forget a person.
    #[command(subcommand)]
    User(user::Verb),
    /// Look at what no worker could process, and end it.
    #[command(subcommand)]
    DeadLetters(dead_letters::Verb),
    /// Compare the books of gate, queue and database; `--repair` mends what differs.
    Audit(audit::Args),
    /// Rebuild the gate of a sale that Redis has lost, or has lost writes of.
    Rebuild(audit::RebuildArgs),
    /// After an outage: give what was accepted its row.
    #[command(subcommand)]
    Replay(replay::Verb),
    /// Write a sale to a file, for `replay run file`.
    Export(export::Args),
    /// See who may act for which user now.
    #[command(subcommand)]
    Lease(lease::Verb),
    /// Send a crowd of buyers, and judge by the books.
    Drill(drill::Args),
    /// Measure beside the servers' own speed, on private servers.
    #[command(subcommand)]
    Bench(bench::Verb),
    /// Mint a bearer token, for development.
    Token(token::Args),
    /// Show the configuration that would be used, without secrets.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Ask a running process whether it is ready; for a container's HEALTHCHECK.
    Health(health::Args),
    /// Start private servers, print their URLs as JSON, end them when standard input closes.
    #[command(hide = true)]
    Servers(servers::Args),
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Print it as TOML.
    Show,
}

/// Why a command failed. Shown as one line, or a few.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Config(#[from] Mistakes),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Servers(#[from] ServerError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Said(String),
    /// Something that the caller wrote and that cannot be meant.
    #[error("{0}")]
    Usage(String),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// Exit code 3.
    ItemsLeft,
    /// Exit code 4.
    OutOfBalance,
}

impl Cli {
    /// Reads the process's arguments. `--set`, `--config` and `--profile` may stand anywhere: clap
    /// would let those behind the verb silently replace those before it.
    pub fn from_args() -> Self {
        Self::parse_from(sources_first(std::env::args_os()))
    }

    pub fn run(self) -> ExitCode {
        crate::process::raise_file_limit();
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("doorbuster: starting: {error}");
                return ExitCode::FAILURE;
            }
        };
        match runtime.block_on(self.dispatch()) {
            Ok(Ended::Done) => ExitCode::SUCCESS,
            Ok(Ended::ItemsLeft) => ExitCode::from(3),
            Ok(Ended::OutOfBalance) => ExitCode::from(4),
            Err(error) => {
                eprintln!("doorbuster: {error}");
                let mistyped = matches!(error, Failed::Config(_) | Failed::Invalid(_) | Failed::Usage(_));
                ExitCode::from(if mistyped { 2 } else { 1 })
            }
        }
    }

    async fn dispatch(self) -> Result<Ended, Failed> {
        let sources = Sources {
            defaults: Vec::new(),
            needs_secret: matches!(
                self.verb,
                Verb::Dev(_) | Verb::Front | Verb::Worker | Verb::Drill(_) | Verb::Token(_)
            ),
            signs: matches!(self.verb, Verb::Dev(_) | Verb::Drill(_) | Verb::Token(_)),
            profile: self.sources.profile,
            file: self.sources.config,
            overrides: self.sources.overrides,
        };
        match self.verb {
            Verb::Dev(args) => dev::run(&sources, args).await,
            Verb::Front => serve::run(&load_and_log(&sources)?, crate::process::Role::Front).await,
            Verb::Worker => serve::run(&load_and_log(&sources)?, crate::process::Role::Worker).await,
            Verb::Migrate => serve::migrate(&load(&sources)?).await,
            Verb::Sale(verb) => sale::run(&load(&sources)?, verb).await,
            Verb::Order(verb) => order::run(&load(&sources)?, verb).await,
            Verb::Payment(verb) => payment::run(&load(&sources)?, verb).await,
            Verb::User(verb) => user::run(&load(&sources)?, verb).await,
            Verb::DeadLetters(verb) => dead_letters::run(&load(&sources)?, verb).await,
            Verb::Audit(args) => audit::run(&load(&sources)?, args).await,
            Verb::Rebuild(args) => audit::rebuild(&load(&sources)?, args).await,
            Verb::Replay(verb) => replay::run(&load(&sources)?, verb).await,
            Verb::Export(args) => export::run(&load(&sources)?, args).await,
            Verb::Lease(verb) => lease::run(&load(&sources)?, verb).await,
            Verb::Drill(args) => drill::run(&sources, args).await,
            Verb::Bench(verb) => bench::run(verb).await,
            Verb::Token(args) => token::run(&load(&sources)?, &args),
            Verb::Config(ConfigVerb::Show) => {
                print!("{}", load(&sources)?.redacted());
                Ok(Ended::Done)
            }
            Verb::Health(args) => health::run(&args).await,
            Verb::Servers(args) => servers::run(args).await,
        }
    }
}

fn sources_first(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut first: Vec<OsString> = args.next().into_iter().collect();
    let mut rest = Vec::new();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let option = ["--set", "--config", "--profile"]
            .into_iter()
            .find(|option| text == *option || text.starts_with(&format!("{option}=")));
        if text == "--" {
            rest.push(arg);
            rest.extend(args);
            break;
        } else if let Some(option) = option {
            let has_value = text.len() > option.len();
            first.push(arg);
            if !has_value {
                first.extend(args.next());
            }
        } else {
            rest.push(arg);
        }
    }
    first.extend(rest);
    first
}

/// For commands whose answer is what they print: the log holds what went wrong.
fn load(sources: &Sources) -> Result<Config, Failed> {
    crate::process::log::start_with("text", "warn");
    Ok(Config::load(sources)?)
}

/// For processes: the log is as configured.
fn load_and_log(sources: &Sources) -> Result<Config, Failed> {
    let config = Config::load(sources)?;
    crate::process::log::start(&config);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_before_and_behind_the_verb_all_count() {
        let line = "doorbuster --set a.b=1 token --set=c.d=2 ada --config x.toml -- --set";
        let sorted = sources_first(line.split(' ').map(OsString::from));
        let expected = "doorbuster --set a.b=1 --set=c.d=2 --config x.toml token ada -- --set";
        assert_eq!(sorted, expected.split(' ').map(OsString::from).collect::<Vec<_>>());
    }
}
