//! The command line: one binary, with a sub-command per process and per operator's act.
//!
//! A command reads its options, calls one of the modules below, and prints the result. Standard output carries only
//! the result, standard error everything else; the exit code says how the command ended.

/// `println!`, except that nobody has to read it: see [`output::say`]. Before the modules that use it.
macro_rules! say {
    ($($result:tt)*) => { $crate::cli::output::say(format_args!($($result)*)) };
}

mod acts;
mod audit;
mod backup;
mod bench;
mod books;
mod completions;
mod confirm;
mod dead_letters;
mod dev;
mod discover;
mod doctor;
mod drill;
mod ended;
mod export;
mod health;
mod init;
mod lease;
mod openapi;
mod order;
mod output;
mod payment;
mod reading;
mod rebuild;
mod replay;
mod sale;
mod serve;
mod servers;
mod settings;
mod sources;
mod stack;
mod terms;
mod time;
mod token;
mod user;
mod webhook;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::ended::{Ended, Failed};
use self::sources::{Needs, SourceArgs, load, load_and_log, load_with_database};
use crate::process::{Role, Sources};

/// Doorbuster runs flash sales: Redis decides who gets a unit, RabbitMQ carries the order, workers write it to
/// the database. Start with `doorbuster dev --demo`.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Without --config, commands read the file that DOORBUSTER_CONFIG names, or else .doorbuster/config.toml \
                  in this folder or the nearest above, which `doorbuster dev` writes.\n\n\
                  Exit codes: 0 done; 1 error; 2 usage; 3 finished, with something left to do; 4 the books do not balance."
)]
pub struct Cli {
    #[command(flatten)]
    sources: SourceArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run everything on this machine: private servers, a front and a worker.
    #[command(after_help = "Example:\n  doorbuster dev\n  doorbuster dev --demo")]
    Dev(dev::Args),
    /// Serve buyers.
    #[command(after_help = "Example:\n  doorbuster front --config /etc/doorbuster.toml")]
    Front,
    /// Write accepted orders to the database.
    #[command(after_help = "Example:\n  doorbuster worker --config /etc/doorbuster.toml")]
    Worker,
    /// Create the tables, or upgrade them to this build's, and give the servers the installation's id.
    #[command(after_help = "Example:\n  doorbuster migrate --config /etc/doorbuster.toml")]
    Migrate(serve::MigrateArgs),
    /// Create and control sales.
    #[command(subcommand, after_help = "Example:\n  doorbuster sale create shoes --item shoe=500")]
    Sale(sale::Verb),
    /// Show one order, or change it.
    #[command(
        subcommand,
        after_help = "Example:\n  doorbuster order show shoes 0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d"
    )]
    Order(order::Verb),
    /// List the events of payment providers.
    #[command(subcommand, after_help = "Example:\n  doorbuster payment list --state late")]
    Payment(payment::Verb),
    /// List what operators have done, newest first.
    #[command(after_help = "Example:\n  doorbuster acts --limit 20")]
    Acts(acts::Args),
    /// Change settings of all processes while they run.
    #[command(subcommand, after_help = "Example:\n  doorbuster settings set front.read_only true")]
    Settings(settings::Verb),
    /// Say where events of orders are delivered, and see to what was not.
    #[command(
        subcommand,
        after_help = "Example:\n  doorbuster webhook add shop https://shop.example/webhooks"
    )]
    Webhook(webhook::Verb),
    /// Erase a person's name.
    #[command(subcommand, after_help = "Example:\n  doorbuster user erase ada --yes")]
    User(user::Verb),
    /// List, replay or fail the messages that no worker could process.
    #[command(subcommand, after_help = "Example:\n  doorbuster dead-letters list")]
    DeadLetters(dead_letters::Verb),
    /// Compare gate, queue and database; with `--repair`, fix what differs.
    #[command(after_help = "Example:\n  doorbuster audit --all\n  doorbuster audit --sale shoes --repair")]
    Audit(audit::Args),
    /// Rebuild a sale's gate after Redis lost the sale, or some of its writes.
    #[command(after_help = "Example:\n  doorbuster rebuild --sale shoes --reason \"redis lost its disk\"")]
    Rebuild(rebuild::Args),
    /// After an outage: write the missing rows of accepted orders.
    #[command(subcommand, after_help = "Example:\n  doorbuster replay plan log --since 2h")]
    Replay(replay::Verb),
    /// Record when the database was backed up, or show it.
    #[command(subcommand, after_help = "Example:\n  doorbuster backup mark")]
    Backup(backup::Verb),
    /// Write a sale to a file that `replay run file` can read.
    #[command(after_help = "Example:\n  doorbuster export --sale shoes --file shoes.jsonl")]
    Export(export::Args),
    /// Show who holds the lease on a user, or release it.
    #[command(subcommand, after_help = "Example:\n  doorbuster lease list --scope shoes")]
    Lease(lease::Verb),
    /// Send a crowd of buyers, then check the books.
    #[command(
        after_help = "Example:\n  doorbuster drill rush\n  doorbuster drill chaos --seed 7 --seconds 60"
    )]
    Drill(drill::Args),
    /// Measure Doorbuster next to the raw speed of its servers, on private servers.
    #[command(subcommand, after_help = "Example:\n  doorbuster bench speed")]
    Bench(bench::Verb),
    /// Mint a bearer token, for development.
    #[command(
        after_help = "Example:\n  doorbuster token ada\n  doorbuster token root --role admin --lasts 600"
    )]
    Token(token::Args),
    /// Show the effective configuration.
    #[command(subcommand, after_help = "Example:\n  doorbuster config show --profile production")]
    Config(ConfigVerb),
    /// Ask a running process whether it is ready, for a container's HEALTHCHECK.
    #[command(after_help = "Example:\n  doorbuster health 127.0.0.1:9090")]
    Health(health::Args),
    /// Examine each server: reachable, version, settings, clock, tables and rights. Changes nothing.
    #[command(after_help = "Example:\n  doorbuster doctor\n  doorbuster doctor --output json")]
    Doctor(doctor::Args),
    /// Write files for the tools that you run already.
    #[command(subcommand, after_help = "Example:\n  doorbuster init grafana --into dashboards")]
    Init(init::Verb),
    /// Print the OpenAPI document of the HTTP API.
    #[command(after_help = "Example:\n  doorbuster openapi buyers > openapi.json")]
    Openapi(openapi::Args),
    /// Print a script that completes commands in a shell.
    #[command(after_help = "Example:\n  doorbuster completions bash > /etc/bash_completion.d/doorbuster")]
    Completions(completions::Args),
    /// Start private servers, print their URLs as JSON, and stop them when standard input closes.
    #[command(hide = true, after_help = "Example:\n  doorbuster servers redis rabbitmq")]
    Servers(servers::Args),
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Print it as TOML, without secrets.
    #[command(after_help = "Example:\n  doorbuster config show --set worker.batch=100")]
    Show,
}

impl Verb {
    fn needs(&self) -> Needs {
        match self {
            Self::Dev(_) => Needs { secret: true, signs: true, discovers: false },
            Self::Drill(args) => Needs { secret: true, signs: true, discovers: args.has_target() },
            Self::Token(_) => Needs { secret: true, signs: true, discovers: true },
            Self::Front => Needs { secret: true, signs: false, discovers: true },
            Self::Worker => Needs { secret: false, signs: false, discovers: true },
            Self::Bench(_)
            | Self::Health(_)
            | Self::Servers(_)
            | Self::Init(_)
            | Self::Openapi(_)
            | Self::Completions(_) => Needs::default(),
            _ => Needs { discovers: true, ..Needs::default() },
        }
    }

    async fn run(self, sources: &Sources) -> Result<Ended, Failed> {
        match self {
            Self::Dev(args) => dev::run(sources, args).await,
            Self::Front => serve::run(&load_and_log(sources)?, Role::Front).await,
            Self::Worker => serve::run(&load_and_log(sources)?, Role::Worker).await,
            Self::Migrate(args) => serve::migrate(&load(sources)?, &args).await,
            Self::Sale(verb) => sale::run(&load_with_database(sources)?, verb).await,
            Self::Order(verb) => order::run(&load_with_database(sources)?, verb).await,
            Self::Payment(verb) => payment::run(&load_with_database(sources)?, verb).await,
            Self::Acts(args) => acts::run(&load_with_database(sources)?, &args).await,
            Self::Settings(verb) => settings::run(&load_with_database(sources)?, verb).await,
            Self::Webhook(verb) => webhook::run(&load_with_database(sources)?, verb).await,
            Self::User(verb) => user::run(&load_with_database(sources)?, verb).await,
            Self::DeadLetters(verb) => dead_letters::run(&load_with_database(sources)?, verb).await,
            Self::Audit(args) => audit::run(&load_with_database(sources)?, args).await,
            Self::Rebuild(args) => rebuild::run(&load_with_database(sources)?, args).await,
            Self::Replay(verb) => replay::run(&load_with_database(sources)?, verb).await,
            Self::Backup(verb) => backup::run(&load_with_database(sources)?, verb).await,
            Self::Export(args) => export::run(&load_with_database(sources)?, args).await,
            Self::Lease(verb) => lease::run(&load(sources)?, verb).await,
            Self::Drill(args) => drill::run(sources, args).await,
            Self::Bench(verb) => bench::run(verb).await,
            Self::Token(args) => token::run(&load(sources)?, &args),
            Self::Config(ConfigVerb::Show) => {
                output::print(&load(sources)?.redacted());
                Ok(Ended::Done)
            }
            Self::Doctor(args) => doctor::run(&load(sources)?, &args).await,
            Self::Health(args) => health::run(&args).await,
            Self::Init(verb) => init::run(&verb),
            Self::Openapi(args) => openapi::run(&args),
            Self::Completions(args) => completions::run(&args, Cli::command()),
            Self::Servers(args) => servers::run(args).await,
        }
    }
}

impl Cli {
    /// Parses the process's arguments, and ends the process with a message if that fails. `--set`, `--config` and
    /// `--profile` may come before or after the command.
    pub fn from_args() -> Self {
        Self::parse_from(sources::first(std::env::args_os()))
    }

    /// Runs the command to its end and returns its exit code. Errors have been printed to standard error by then.
    pub fn run(self) -> ExitCode {
        crate::process::raise_file_limit();
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("doorbuster: starting: {error}");
                return ExitCode::FAILURE;
            }
        };
        let code = match runtime.block_on(self.dispatch()) {
            Ok(ended) => ended.exit_code(),
            Err(error) => {
                eprintln!("doorbuster: {error}");
                error.exit_code()
            }
        };
        // Left to the end of the process: to drop it would cancel lapin's tasks, and the thread of a connection that is
        // still being opened panics at that.
        std::mem::forget(runtime);
        code
    }

    async fn dispatch(self) -> Result<Ended, Failed> {
        let sources = self.sources.resolve(self.verb.needs())?;
        self.verb.run(&sources).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line; quoted ones stay together.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (nth, part) in line.split('"').enumerate() {
            match nth % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }

    fn check(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, examples) = help.split_once("Example:\n").unwrap_or_else(|| panic!("{path} has no example"));
        for example in examples.lines().map(str::trim) {
            assert!(example.starts_with(path), "{path}: another command's example: {example}");
            let example = example.split(" > ").next().unwrap_or_default();
            Cli::try_parse_from(words(example)).unwrap_or_else(|error| panic!("{path}: {example}\n{error}"));
        }
        for inner in command.get_subcommands() {
            check(inner, &format!("{path} {}", inner.get_name()));
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example_that_is_understood() {
        for command in Cli::command().get_subcommands() {
            check(command, &format!("doorbuster {}", command.get_name()));
        }
    }
}
