//! The database: it answers, a COMMIT is durable, its clock is right, its tables match this build, and rows can be
//! written.

use std::time::Duration;

use super::clock;
use super::finding::{Finding, Findings, INSTALLATION};
use crate::domain::Millis;
use crate::link::{DATABASE, InstallationId};
use crate::process::{Config, redact};
use crate::store::{DatabaseFacts, Store, StoreError};

pub(super) const SERVER: &str = "database";

pub(super) const UNREACHABLE: &str = "start it and run `doorbuster migrate`, or correct database.url (host, port, user, password and database)";

/// How long to wait for another server to show its installation.
const OTHERS_WITHIN: Duration = Duration::from_secs(1);

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of(SERVER);
    if let Err(error) = look(config, &mut findings).await {
        findings.unreachable(format!("{}: {error}", redact(&config.database.url)), UNREACHABLE);
    }
    findings.into_vec()
}

async fn look(config: &Config, findings: &mut Findings) -> Result<(), StoreError> {
    let settings = config.store();
    let store = Store::open_unchanged(&settings).await?;
    if let Some(mixed) = store.mixes_statements().await? {
        findings.settings(vec![mixed.into()]);
        return Ok(());
    }
    let facts = store.examine(&settings).await?;
    findings.reachable(redact(&config.database.url));
    findings.ok("version", format!("{} {}", store.engine(), facts.version));
    findings.settings(store.wrong_settings().await?);
    installation(config, store.installation().await?, findings).await;
    let before = Millis::now();
    let time = store.read_clock().await?;
    clock::compare(findings, before, time, Millis::now());
    tables(facts, findings);
    store.close().await;
    Ok(())
}

/// A database without an id joins no installation by itself: it may have replaced the one that the other servers belong
/// to.
async fn installation(config: &Config, own: Option<InstallationId>, findings: &mut Findings) {
    if let Some(id) = own {
        return findings.installation(Some(config.installation.meet(DATABASE, id).map(|()| id)));
    }
    match config.installation.id_within(OTHERS_WITHIN).await {
        None => findings.ok(INSTALLATION, "none yet; `doorbuster migrate` makes it part of one"),
        Some(id) => findings.amiss(
            INSTALLATION,
            format!("none, but redis belongs to {id}"),
            format!(
                "if it replaces that installation's database, run `doorbuster migrate --installation {id}`; otherwise \
                 correct redis.url or database.url"
            ),
        ),
    }
}

fn tables(facts: DatabaseFacts, findings: &mut Findings) {
    if !facts.unknown.is_empty() {
        let found = format!("made by a newer build: {}", facts.unknown.join(", "));
        findings.amiss("tables", found, "use the newer build for every process");
    }
    if !facts.pending.is_empty() {
        let found = format!("not up to date; missing: {}", facts.pending.join(", "));
        findings.amiss("tables", found, "run `doorbuster migrate`");
        return;
    }
    if facts.unknown.is_empty() {
        findings.ok("tables", "up to date");
    }
    if facts.refused.is_empty() {
        findings.ok("rights", "reads and writes every table");
    }
    for refused in facts.refused {
        let advice = "give the user of database.url SELECT, INSERT, UPDATE and DELETE, or name the primary";
        findings.amiss("rights", refused, advice);
    }
}
