//! Facts about Redis that an operator needs before a sale: which software it is, and what this user may do there.
//! Changes nothing.

use super::core::Gate;
use super::error::GateError;
use crate::link::Fault;

/// Redis, as `doorbuster doctor` sees it.
#[derive(Debug, Clone)]
pub struct RedisFacts {
    /// `Redis` or `Valkey`.
    pub software: &'static str,
    /// The version of that software, such as `7.0.15`.
    pub version: String,
    /// Why the gate cannot work there, in the server's words: a missing right, a replica. Empty if it can.
    pub refused: Vec<String>,
}

impl Gate {
    /// Reads the version and tests the gate's rights without changing anything: PERSIST on a key that does not exist
    /// needs the right to write, and EVALSHA of an unknown script needs the right to run scripts.
    pub async fn examine(&self) -> Result<RedisFacts, GateError> {
        let info: String = self.link.query(redis::cmd("INFO").arg("server")).await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        // Valkey reports a redis_version too, for old clients.
        let (software, version) = match field("valkey_version:") {
            Some(version) => ("Valkey", Some(version)),
            None => ("Redis", field("redis_version:")),
        };
        let mut refused = Vec::new();
        let key = format!("{}:doctor", self.settings.prefix);
        if let Err(fault) = self.link.query::<i64>(redis::cmd("PERSIST").arg(key)).await {
            refused.push(format!("writing: {fault}"));
        }
        let unknown = "0".repeat(40);
        match self.link.query::<redis::Value>(redis::cmd("EVALSHA").arg(unknown).arg(0)).await {
            Ok(_) | Err(Fault::NoScript) => {}
            Err(fault) => refused.push(format!("running a script: {fault}")),
        }
        Ok(RedisFacts { software, version: version.unwrap_or_default(), refused })
    }
}
