//! Redis: it answers, it is recent, it loses nothing, its clock is right, and the gate may write to it.

use super::finding::{Finding, Findings};
use super::{clock, version};
use crate::domain::Millis;
use crate::gate::{Gate, GateError};
use crate::link::REDIS;
use crate::process::{Config, redact};

pub(super) const SERVER: &str = "redis";

pub(super) const UNREACHABLE: &str = "start it, or correct redis.url (host, port, user and password)";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of(SERVER);
    if let Err(error) = look(config, &mut findings).await {
        findings.unreachable(format!("{}: {error}", redact(&config.redis.url)), UNREACHABLE);
    }
    findings.into_vec()
}

async fn look(config: &Config, findings: &mut Findings) -> Result<(), GateError> {
    let gate = Gate::open(config.gate())?;
    let facts = gate.examine().await?;
    findings.reachable(redact(&config.redis.url));
    let running = format!("{} {}", facts.software, facts.version);
    if version::is_at_least(&facts.version, &[7, 0]) {
        findings.ok("version", running);
    } else {
        findings.amiss("version", running, "install Redis 7.0 or later, or Valkey");
    }
    match (config.redis.check_settings, gate.wrong_settings().await?) {
        (false, _) => findings.ok("settings", "not checked, because redis.check_settings is false"),
        (true, Some(broken)) => findings.settings(broken),
        (true, None) => findings.ok("settings", "not shown by the server (CONFIG GET); check them yourself"),
    }
    let met = |id| config.installation.meet(REDIS, id).map(|()| id);
    findings.installation(gate.installation().await?.map(met));
    let before = Millis::now();
    let time = gate.clock().await?;
    clock::compare(findings, before, time, Millis::now());
    if facts.refused.is_empty() {
        findings.ok("rights", "reads, writes and runs scripts");
    }
    for refused in facts.refused {
        let advice = "give the user of redis.url the rights that it lacks (ACL SETUSER), or name the primary";
        findings.amiss("rights", refused, advice);
    }
    Ok(())
}
