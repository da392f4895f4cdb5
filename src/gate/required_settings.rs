//! Questions about the Redis server itself: identity, clock, and settings that the promises need.

use tokio::time::Instant;

use super::core::Gate;
use super::error::GateError;
use crate::domain::Millis;
use crate::link::Fault;

/// Settings of Redis that the promises need: name, required value, and what breaks otherwise.
const REQUIRED: [(&str, &str, &str); 4] = [
    ("maxmemory-policy", "noeviction", "an evicted key is a sold unit forgotten"),
    ("appendonly", "yes", "a restart would forget every order that has no row yet"),
    ("appendfsync", "always", "a power cut would forget accepted orders"),
    (
        "no-appendfsync-on-rewrite",
        "no",
        "a power cut while Redis rewrites its file would forget accepted orders",
    ),
];

/// The command whose reply has the `run_id`.
pub(super) fn server_info() -> redis::Cmd {
    redis::cmd("INFO").arg("server").to_owned()
}

/// The `run_id` in the reply to [`server_info`].
pub(super) fn run_id(info: &str) -> Result<String, GateError> {
    let found = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    found.map(str::to_owned).ok_or_else(|| GateError::Broken("INFO server names no run_id".into()))
}

impl Gate {
    /// Checks that Redis answers, and returns its `run_id`. A different `run_id` is a different server process.
    pub async fn ping(&self) -> Result<String, GateError> {
        run_id(&self.link.query::<String>(&server_info()).await?)
    }

    /// The time by Redis's clock.
    pub async fn clock(&self) -> Result<Millis, GateError> {
        let sent = Instant::now();
        let (seconds, micros): (i64, i64) = self.link.query(&redis::cmd("TIME")).await?;
        let now = Millis(seconds * 1000 + micros / 1000);
        self.clock.observe(sent, now);
        Ok(now)
    }

    /// The settings of Redis that break a promise, each with the command that corrects it; empty if all are right.
    /// `None` if the server does not let clients read its settings: managed services forbid CONFIG.
    pub async fn wrong_settings(&self) -> Result<Option<Vec<String>>, GateError> {
        let mut wrong = Vec::new();
        for (name, good, why) in REQUIRED {
            let answer: Result<Vec<String>, _> =
                self.link.query(redis::cmd("CONFIG").arg("GET").arg(name)).await;
            match answer {
                Ok(pair) if pair.len() == 2 => {
                    if pair[1] != good {
                        wrong.push(format!(
                            "redis has {name} = {}: {why}; set it to {good} (CONFIG SET {name} {good}, and in redis.conf)",
                            pair[1]
                        ));
                    }
                }
                Ok(_) | Err(Fault::Broken(_)) => return Ok(None),
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(Some(wrong))
    }
}
