//! `drill`: rehearsed load against a private stack, or a running one.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use super::stack::Stack;
use super::{Ended, Failed};
use crate::front::Tokens;
use crate::process::config::Sources;
use crate::process::{log, signal};
use crate::rehearsal::chaos::{self, ChaosPlan};
use crate::rehearsal::drill::{self, Arrival, Plan, Preset, Progress, Report, Steering, Target};
use crate::rehearsal::servers::{Ending, Folder, Kind, Server};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    drill: Which,
    /// Units of the item.
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    units: Option<i64>,
    /// Buyers, each with a token of his own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: Option<u32>,
    /// Buyers per second, instead of all at once.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Connections of the whole crowd.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Seconds that orders may take to end after the last click.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    settle_within: Option<u32>,
    /// A running front, instead of a private stack. Its auth.secret must be configured here too.
    #[arg(long, requires = "operations", value_name = "HOST:PORT")]
    url: Option<String>,
    /// The running stack's operations listener.
    #[arg(long, requires = "url", value_name = "HOST:PORT")]
    operations: Option<String>,
    /// Returns: seconds that buyers have to pay; 5 if not said.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pay_within: Option<u32>,
    /// Rush: an operator tries each act of live control meanwhile.
    #[arg(long)]
    live_control: bool,
    #[command(flatten)]
    chaos: ChaosArgs,
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// Of the chaos drill alone.
#[derive(Debug, clap::Args)]
struct ChaosArgs {
    /// Chaos: plans the faults; the same seed plans the same. Without it a fresh one is taken.
    #[arg(long)]
    seed: Option<u64>,
    /// Chaos: faults to inflict; 70 if not said.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    faults: Option<u32>,
    /// Chaos: seconds under attack; 280 if not said.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=14_400))]
    seconds: Option<u32>,
    /// Chaos: the database to attack; postgres if not said. Returns: a private one; the same.
    #[arg(long, value_parser = ["postgres", "mariadb"])]
    database: Option<String>,
    /// Chaos: nobody pays or cancels, nothing expires, nothing is restocked.
    #[arg(long)]
    plain: bool,
    /// Chaos: leave the folder with all data and logs where it is, and name it.
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Which {
    /// 1,000 units, 2,000 buyers at once.
    Oversell,
    /// One user ten times with one key, another ten times with ten keys.
    Duplicate,
    /// 10,000 units, 5,000 requests a second for 10 seconds.
    Rush,
    /// 10,000 units, and half of the buyers never pay: until every unit is paid for.
    Returns,
    /// Two fronts, two workers and all servers, while a seeded nemesis does its worst.
    Chaos,
}

pub(super) async fn run(sources: &Sources, args: Args) -> Result<Ended, Failed> {
    log::start_with("auto", "error");
    if matches!(args.drill, Which::Chaos) {
        return chaos(sources, &args).await;
    }
    let ChaosArgs { seed, faults, seconds, database, keep, plain } = &args.chaos;
    let database = database.is_some() && !matches!(args.drill, Which::Returns);
    if seed.is_some() || faults.is_some() || seconds.is_some() || database || *keep || *plain {
        let why = "--seed, --faults, --seconds, --database, --plain and --keep belong to drill chaos: leave them out";
        return Err(Failed::Usage(why.into()));
    }
    let plan = plan(&args)?;
    if matches!(args.drill, Which::Returns) {
        return returns(sources, &args, &plan).await;
    }
    let report = match running(sources, &args)? {
        Some(target) => Box::pin(drill::run(&target, &plan, &Progress::on_stderr(), &signal::stop_token()))
            .await
            .map_err(said)?,
        None => on_private_stack(sources, &plan, &Progress::on_stderr()).await?,
    };
    if args.output == "json" {
        println!("{}", serde_json::json!(report));
    } else {
        println!("{report}");
    }
    Ok(judge(&report))
}

/// The running stack that is named, if one is.
fn running(sources: &Sources, args: &Args) -> Result<Option<Target>, Failed> {
    let (Some(url), Some(operations)) = (&args.url, &args.operations) else { return Ok(None) };
    let config = crate::process::config::Config::load(sources)?;
    Ok(Some(Target {
        buyers: address(url)?,
        operations: address(operations)?,
        tokens: Tokens::new(config.auth()),
        payment_secret: drill::payment_secret(&config.auth.secret),
    }))
}

async fn returns(sources: &Sources, args: &Args, plan: &Plan) -> Result<Ended, Failed> {
    if args.buyers.is_some() || args.rate.is_some() {
        let why = "in drill returns buyers come until every unit is paid for: leave out --buyers and --rate";
        return Err(Failed::Usage(why.into()));
    }
    let progress = Progress::on_stderr();
    let report = match running(sources, args)? {
        Some(target) => Box::pin(drill::run_returns(&target, plan, &progress, &signal::stop_token()))
            .await
            .map_err(said)?,
        None => {
            let work = async |target: &Target, stop: &_| {
                Box::pin(drill::run_returns(target, plan, &progress, stop)).await
            };
            let folder = Folder::ephemeral()?;
            // SQLite would be what is measured: buyers would pay slower than their time to pay runs out.
            let kind = database(args).unwrap_or(Kind::Postgres);
            let server = Server::start(kind, folder.path()).await?;
            let mut sources = sources.clone();
            sources.overrides.push(format!("database.url={}", server.url));
            let ran = with_private_stack(&sources, &progress, work).await;
            server.stop(Ending::AtOnce).await;
            ran?
        }
    };
    if args.output == "json" {
        println!("{}", serde_json::json!(report));
    } else {
        println!("{report}");
    }
    Ok(match (report.balances(), report.is_complete()) {
        (false, _) => Ended::OutOfBalance,
        (true, false) => Ended::ItemsLeft,
        (true, true) => Ended::Done,
    })
}

/// The one that is asked for.
fn database(args: &Args) -> Option<Kind> {
    args.chaos.database.as_deref().map(|name| if name == "mariadb" { Kind::Mariadb } else { Kind::Postgres })
}

async fn chaos(sources: &Sources, args: &Args) -> Result<Ended, Failed> {
    let own = [args.buyers, args.rate, args.connections, args.settle_within];
    if args.url.is_some() || own.iter().any(Option::is_some) {
        let why = "drill chaos attacks a stack of its own, with a crowd of its own: leave out --url, \
                   --operations, --buyers, --rate, --connections and --settle-within";
        return Err(Failed::Usage(why.into()));
    }
    let (faults, seconds) = (args.chaos.faults.unwrap_or(70), args.chaos.seconds.unwrap_or(280));
    let database = database(args).unwrap_or(Kind::Postgres);
    let seed = args.chaos.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let plan = ChaosPlan {
        seed,
        faults: faults as usize,
        orders: args.units.unwrap_or(20_000),
        lasts: Duration::from_secs(u64::from(seconds)),
        database,
        follow_up: !args.chaos.plain,
        settings: sources.overrides.clone(),
    };
    // Said first, so that it is known whatever happens.
    let again = format!(
        "doorbuster drill chaos --seed {seed} --faults {faults} --seconds {seconds} --units {} --database {}{}",
        plan.orders,
        database.name(),
        if plan.follow_up { "" } else { " --plain" }
    );
    eprintln!("  the same again: {again}");
    let folder = Folder::ephemeral()?;
    let stop = signal::stop_token();
    let ran = Box::pin(chaos::run(folder.path(), &plan, &Progress::on_stderr(), &stop)).await;
    let ended = match &ran {
        Ok(report) if !report.balances() => Ended::OutOfBalance,
        Ok(report) if !report.is_complete() => Ended::ItemsLeft,
        _ => Ended::Done,
    };
    if args.chaos.keep {
        eprintln!("  kept: {}", folder.keep().display());
    }
    let report = ran.map_err(|error| Failed::Said(error.to_string()))?;
    if args.output == "json" {
        println!("{}", serde_json::json!(report));
    } else {
        println!("{report}");
    }
    Ok(ended)
}

pub(super) fn judge(report: &Report) -> Ended {
    match (report.balances, report.complete) {
        (false, _) => Ended::OutOfBalance,
        (true, false) => Ended::ItemsLeft,
        (true, true) => Ended::Done,
    }
}

/// How long the front may take to meet a broker that answers.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// Starts everything in a temporary folder, runs the drill, and ends everything.
pub(super) async fn on_private_stack(
    sources: &Sources,
    plan: &Plan,
    progress: &Progress,
) -> Result<Report, Failed> {
    let work = async |target: &Target, stop: &_| Box::pin(drill::run(target, plan, progress, stop)).await;
    with_private_stack(sources, progress, work).await
}

async fn with_private_stack<T>(
    sources: &Sources,
    progress: &Progress,
    work: impl AsyncFnOnce(&Target, &tokio_util::sync::CancellationToken) -> Result<T, drill::DrillError>,
) -> Result<T, Failed> {
    let stop = signal::stop_token();
    let mut stack = Stack::start(&any_port(sources), Folder::ephemeral()?).await?;
    progress.say("starting the broker");
    let broker = stop.run_until_cancelled(stack.broker_is_up()).await;
    let (broker, result) = match broker {
        Some(Ok(broker)) => {
            let target = stack.target()?;
            let result = stop.run_until_cancelled(async {
                stack.running.publisher_is_up(CONNECT_WITHIN).await?;
                work(&target, &stop).await.map_err(said)
            });
            (Some(broker), result.await.unwrap_or(Err(said(drill::DrillError::Interrupted))))
        }
        Some(Err(error)) => (None, Err(error)),
        None => (None, Err(said(drill::DrillError::Interrupted))),
    };
    stack.stop(broker, Ending::AtOnce).await;
    result
}

/// A drill's own stack stays out of the way of one that runs.
fn any_port(sources: &Sources) -> Sources {
    let mut sources = sources.clone();
    for key in ["front.listen", "operations.listen"] {
        if !sources.overrides.iter().any(|pair| pair.starts_with(key)) {
            sources.overrides.push(format!("{key}=127.0.0.1:0"));
        }
    }
    sources
}

fn said(error: drill::DrillError) -> Failed {
    Failed::Said(error.to_string())
}

fn plan(args: &Args) -> Result<Plan, Failed> {
    let mut plan = match args.drill {
        Which::Oversell => Preset::Oversell,
        Which::Duplicate => Preset::Duplicate,
        // Chaos has a plan of its own.
        Which::Rush | Which::Chaos => Preset::Rush,
        Which::Returns => Preset::Returns,
    }
    .plan();
    match (args.pay_within, &mut plan.follow_up) {
        (Some(seconds), Some(follow_up)) => follow_up.pay_within_s = seconds,
        (Some(_), None) => {
            return Err(Failed::Usage("--pay-within belongs to drill returns: leave it out".into()));
        }
        (None, _) => {}
    }
    if args.live_control {
        if !matches!(args.drill, Which::Rush) {
            return Err(Failed::Usage("--live-control belongs to drill rush: leave it out".into()));
        }
        plan.steering = Some(Steering::EachActOnce { pause: Duration::from_millis(400) });
    }
    if matches!(args.drill, Which::Duplicate) && args.buyers.is_some() {
        return Err(Failed::Usage("drill duplicate has two buyers by its nature: leave out --buyers".into()));
    }
    plan.units = args.units.unwrap_or(plan.units);
    plan.buyers = args.buyers.unwrap_or(plan.buyers);
    plan.arrival = args.rate.map_or(plan.arrival, |rate| Arrival::PerSecond(f64::from(rate)));
    plan.connections = args.connections.map_or(plan.connections, |connections| connections as usize);
    if let Some(seconds) = args.settle_within {
        plan.settle_within = Duration::from_secs(u64::from(seconds));
    }
    Ok(plan)
}

fn address(text: &str) -> Result<SocketAddr, Failed> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    bare.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| Failed::Usage(format!("{text} is not HOST:PORT of a server that can be found")))
}
