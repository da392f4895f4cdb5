//! `doctor`: checks that each server is reachable, recent, safely configured, on time, and open to this user. It
//! changes nothing, and an unavailable server does not keep the others from being examined. If Redis and the database
//! answer, it also compares what they say of each sale.

mod broker;
mod clock;
mod database;
mod finding;
mod redis;
mod sales;
mod version;

use std::time::Duration;

use self::finding::{Finding, Findings};
use super::ended::{Ended, Failed};
use super::output::Output;
use crate::process::Config;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: Output,
}

/// How long the examination of one server may take.
const WITHIN: Duration = Duration::from_secs(5);

/// Milliseconds that one answer may take: short enough that an unavailable server is reported with its error, not
/// only as too slow. Redis gets less, because its link allows three times its timeout.
const ANSWER_MS: u64 = 4_000;
const REDIS_ANSWER_MS: u64 = 1_000;

pub(super) async fn run(config: &Config, args: &Args) -> Result<Ended, Failed> {
    let config = &hurried(config);
    let (redis, broker, database) = tokio::join!(
        in_time(self::redis::SERVER, self::redis::UNREACHABLE, self::redis::examine(config)),
        in_time(broker::SERVER, broker::UNREACHABLE, broker::examine(config)),
        in_time(database::SERVER, database::UNREACHABLE, database::examine(config)),
    );
    let mut findings: Vec<Finding> = redis.into_iter().chain(broker).chain(database).collect();
    let needed = [self::redis::SERVER, database::SERVER];
    if !findings.iter().any(|finding| needed.iter().any(|server| finding.is_unreachable(server))) {
        findings.extend(in_time(sales::SUBJECT, sales::UNREADABLE, sales::examine(config)).await);
    }
    let amiss = findings.iter().filter(|finding| !finding.ok).count();
    if args.output.is_json() {
        say!("{}", serde_json::json!({ "well": amiss == 0, "findings": findings }));
    } else {
        for finding in &findings {
            say!("{finding}");
        }
        match amiss {
            0 => say!("all is well"),
            amiss => say!("{amiss} of {} findings are amiss", findings.len()),
        }
    }
    Ok(if amiss == 0 { Ended::Done } else { Ended::ItemsLeft })
}

fn hurried(config: &Config) -> Config {
    let mut config = config.clone();
    config.redis.timeout_ms = config.redis.timeout_ms.min(REDIS_ANSWER_MS);
    config.queue.timeout_ms = config.queue.timeout_ms.min(ANSWER_MS);
    config.database.timeout_ms = config.database.timeout_ms.min(ANSWER_MS);
    config
}

async fn in_time(
    server: &'static str,
    advice: &'static str,
    examination: impl Future<Output = Vec<Finding>>,
) -> Vec<Finding> {
    tokio::time::timeout(WITHIN, examination).await.unwrap_or_else(|_| {
        let mut findings = Findings::of(server);
        findings.unreachable(format!("no complete answer within {WITHIN:?}"), advice);
        findings.into_vec()
    })
}
