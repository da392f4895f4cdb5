//! The sections of the configuration. Units, ranges and reasons are in `config/default.toml`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::range;
use crate::domain::Rate;
use crate::front::{AuthSettings, FrontSettings, Providers, ServerSettings, ThrottleSettings};
use crate::gate::GateSettings;
use crate::intake::{DurabilityPolicy, IntakeSettings};
use crate::link::RedisSettings;
use crate::maintenance::MaintenanceSettings;
use crate::maintenance::SweepSettings;
use crate::queue::QueueSettings;
use crate::store::StoreSettings;
use crate::worker::WorkerSettings;

/// What becomes of a sale whose gate lost writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RebuildPolicy {
    Manual,
    Auto,
}

macro_rules! sections {
    ($($name:ident { $($key:ident: $type:ty),+ $(,)? })+) => {
        $(#[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct $name { $(pub $key: $type),+ })+
    };
}

sections! {
    Config {
        front: Front, operations: Operations, auth: Auth, redis: Redis, queue: Queue,
        database: Database, gate: Gate, intake: Intake, sweep: Sweep, worker: Worker,
        maintenance: Maintenance, audit: Audit, payments: Payments, process: Process, log: Log,
    }
    Front {
        listen: String, connections: u64, header_within_ms: u64, body_within_ms: u64,
        request_within_ms: u64, body_limit_bytes: u64, address_rate: String, address_header: String,
    }
    Operations { listen: String }
    Auth { secret: String, secret_file: String, public_key: String, issuer: String, audience: String, leeway_s: u64 }
    Redis { url: String, prefix: String, timeout_ms: u64, check_settings: bool }
    Queue { url: String, prefix: String, timeout_ms: u64, window: u64, delivery_limit: u64, log_hours: u64, log_mb: u64 }
    Database { url: String, connections: u64, timeout_ms: u64 }
    Gate { outbox_bound: u64, outbox_bound_in_all: u64, batch: u64, backlog: u64, rebuild: RebuildPolicy }
    Intake {
        durability: DurabilityPolicy, confirm_within_ms: u64, sale_cache_ms: u64, watch_every_ms: u64,
    }
    Sweep { every_ms: u64, batch: u64, grace_ms: u64, overtaken_after_ms: u64, parked_after_ms: u64, spacing_ms: u64 }
    Worker { batch: u64, lanes: u64, linger_ms: u64, prefetch: u64, lease_ms: u64, hold_ms: u64 }
    Maintenance { every_ms: u64, batch: u64, purge_after_days: u64 }
    Audit { every_s: u64, pause_sale: bool }
    Payments { secrets: String, secrets_file: String }
    Process { drain_ms: u64 }
    Log { format: String, level: String }
}

const SHORT_SECRET: &str = "auth.secret has fewer than 32 bytes; set DOORBUSTER__AUTH__SECRET, or auth.secret_file, \
     for example to the output of `openssl rand -hex 32`";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Ranges are checked before: nothing is cut off here on a machine with 64 bits.
fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl Config {
    pub(super) fn with_secret_from_file(mut self, mistakes: &mut Vec<String>) -> Self {
        for (name, secret, file) in [
            ("auth.secret_file", &mut self.auth.secret, &self.auth.secret_file),
            ("payments.secrets_file", &mut self.payments.secrets, &self.payments.secrets_file),
        ] {
            if secret.is_empty() && !file.is_empty() {
                match std::fs::read_to_string(file) {
                    Ok(text) => text.trim_end().clone_into(secret),
                    Err(error) => mistakes.push(format!("{name} {file}: {error}")),
                }
            }
        }
        self
    }

    pub(super) fn check(&self, needs_secret: bool, signs: bool, mistakes: &mut Vec<String>) {
        for (name, listen) in
            [("front.listen", &self.front.listen), ("operations.listen", &self.operations.listen)]
        {
            if listen.parse::<SocketAddr>().is_err() {
                mistakes.push(format!(
                    "{name} is {listen:?}; it must be an address and a port, such as 127.0.0.1:8080"
                ));
            }
        }
        if let Err(wrong) = self.address_rate() {
            mistakes.push(format!("front.address_rate is {:?}; {wrong}", self.front.address_rate));
        }
        if let Err(wrong) = Providers::parse(&self.payments.secrets) {
            mistakes.push(format!("payments.secrets: {wrong}"));
        }
        let length = self.auth.secret.len();
        if let Err(wrong) = crate::front::check_public_key(&self.auth.public_key) {
            mistakes.push(format!("auth.public_key: {wrong}"));
        }
        let can_do_without = !needs_secret || (!signs && !self.auth.public_key.is_empty());
        if length < 32 && (length > 0 || !can_do_without) {
            mistakes.push(SHORT_SECRET.into());
        }
        for (name, url, schemes) in [
            ("redis.url", &self.redis.url, &["redis://", "rediss://"][..]),
            ("queue.url", &self.queue.url, &["amqp://", "amqps://"]),
            ("database.url", &self.database.url, &["sqlite:", "postgres:", "postgresql:", "mysql:"]),
        ] {
            if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
                mistakes.push(format!(
                    "{name} is {:?}; it must begin with {}",
                    redact(url),
                    schemes.join(" or ")
                ));
            }
        }
        for (name, prefix) in [("redis.prefix", &self.redis.prefix), ("queue.prefix", &self.queue.prefix)] {
            let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c);
            if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
                mistakes.push(format!("{name} is {prefix:?}; it must be 1 to 64 of a-z, 0-9, '-' and '.'"));
            }
        }
        if !["auto", "text", "json"].contains(&self.log.format.as_str()) {
            mistakes.push(format!("log.format is {:?}; it must be auto, text or json", self.log.format));
        }
        for (name, wrong) in [
            ("redis.url", crate::link::check_url(&self.redis.url).err().map(|error| error.to_string())),
            ("queue.url", crate::queue::check_url(&self.queue.url).err().map(|error| error.to_string())),
            (
                "database.url",
                crate::store::check_url(&self.database.url).err().map(|error| error.to_string()),
            ),
        ] {
            if let Some(wrong) = wrong {
                mistakes.push(format!("{name} cannot be read: {wrong}"));
            }
        }
        // A filter would take any word for the name of a module, and be silent about all others.
        let level = self.log.level.as_str();
        let is_level = ["error", "warn", "info", "debug", "trace", "off"].contains(&level);
        let is_filter = level.contains(['=', ',']) && level.parse::<tracing_subscriber::EnvFilter>().is_ok();
        if !is_level && !is_filter {
            mistakes.push(format!(
                "log.level is {level:?}; it must be error, warn, info, debug, trace, or a filter"
            ));
        }
        self.check_ranges(mistakes);
    }

    fn check_ranges(&self, mistakes: &mut Vec<String>) {
        let Self {
            front,
            auth,
            redis,
            queue,
            database,
            gate,
            intake,
            sweep,
            worker,
            maintenance,
            process,
            ..
        } = self;
        for (name, value, from, to) in [
            ("front.connections", front.connections, 1, 1_000_000),
            ("front.header_within_ms", front.header_within_ms, 100, 60_000),
            ("front.body_within_ms", front.body_within_ms, 100, 60_000),
            ("front.request_within_ms", front.request_within_ms, 1_000, 60_000),
            ("front.body_limit_bytes", front.body_limit_bytes, 256, 1_048_576),
            ("auth.leeway_s", auth.leeway_s, 0, 5),
            ("redis.timeout_ms", redis.timeout_ms, 50, 10_000),
            ("queue.timeout_ms", queue.timeout_ms, 100, 60_000),
            ("queue.window", queue.window, 1, 100_000),
            ("queue.delivery_limit", queue.delivery_limit, 1, 1_000),
            ("queue.log_hours", queue.log_hours, 1, 24 * 366),
            ("queue.log_mb", queue.log_mb, 10, 10_000_000),
            ("database.connections", database.connections, 1, 1_000),
            ("database.timeout_ms", database.timeout_ms, 100, 60_000),
            ("gate.outbox_bound", gate.outbox_bound, 100, 10_000_000),
            ("gate.outbox_bound_in_all", gate.outbox_bound_in_all, 100, 10_000_000),
            ("gate.batch", gate.batch, 1, 256),
            ("gate.backlog", gate.backlog, 100, 1_000_000),
            ("intake.confirm_within_ms", intake.confirm_within_ms, 10, 10_000),
            ("intake.sale_cache_ms", intake.sale_cache_ms, 0, 60_000),
            ("intake.watch_every_ms", intake.watch_every_ms, 5, 5_000),
            ("sweep.every_ms", sweep.every_ms, 50, 60_000),
            ("sweep.batch", sweep.batch, 1, 10_000),
            ("sweep.grace_ms", sweep.grace_ms, 100, 600_000),
            ("sweep.overtaken_after_ms", sweep.overtaken_after_ms, 1_000, 3_600_000),
            ("sweep.parked_after_ms", sweep.parked_after_ms, 1_000, 3_600_000),
            ("sweep.spacing_ms", sweep.spacing_ms, 100, 3_600_000),
            ("worker.batch", worker.batch, 1, 1_000),
            ("worker.lanes", worker.lanes, 1, 16),
            ("worker.linger_ms", worker.linger_ms, 0, 1_000),
            ("worker.prefetch", worker.prefetch, 1, 65_535),
            ("worker.lease_ms", worker.lease_ms, 2_000, 5_000),
            ("worker.hold_ms", worker.hold_ms, 100, 600_000),
            ("maintenance.every_ms", maintenance.every_ms, 50, 60_000),
            ("audit.every_s", self.audit.every_s, 0, 86_400),
            ("maintenance.batch", maintenance.batch, 1, 1_000),
            ("maintenance.purge_after_days", maintenance.purge_after_days, 0, 36_500),
            ("process.drain_ms", process.drain_ms, 0, 600_000),
        ] {
            range(name, value, from, to, mistakes);
        }
        if worker.prefetch < worker.batch {
            mistakes.push(format!(
                "worker.prefetch is {}; it must be at least worker.batch ({})",
                worker.prefetch, worker.batch
            ));
        }
    }

    /// As TOML, without anything secret.
    pub fn redacted(&self) -> String {
        let mut shown = self.clone();
        if !shown.auth.secret.is_empty() {
            shown.auth.secret = "***".into();
        }
        if !shown.payments.secrets.is_empty() {
            shown.payments.secrets = "***".into();
        }
        for url in [&mut shown.redis.url, &mut shown.queue.url, &mut shown.database.url] {
            *url = redact(url);
        }
        toml::to_string(&shown).unwrap_or_default()
    }

    pub fn redis(&self) -> RedisSettings {
        RedisSettings { url: self.redis.url.clone(), timeout: ms(self.redis.timeout_ms) }
    }

    pub fn gate(&self) -> GateSettings {
        GateSettings {
            redis: self.redis(),
            prefix: self.redis.prefix.clone(),
            outbox_bound: self.gate.outbox_bound,
            outbox_bound_in_all: self.gate.outbox_bound_in_all,
            batch: count(self.gate.batch),
            backlog: count(self.gate.backlog),
            sweep_grace: ms(self.sweep.grace_ms),
            overtaken_after: ms(self.sweep.overtaken_after_ms),
            parked_after: ms(self.sweep.parked_after_ms),
        }
    }

    pub fn queue(&self) -> QueueSettings {
        QueueSettings {
            url: self.queue.url.clone(),
            prefix: self.queue.prefix.clone(),
            timeout: ms(self.queue.timeout_ms),
            window: count(self.queue.window),
            delivery_limit: u32::try_from(self.queue.delivery_limit).unwrap_or(u32::MAX),
            log_hours: self.queue.log_hours,
            log_bytes: self.queue.log_mb * 1024 * 1024,
        }
    }

    pub fn store(&self) -> StoreSettings {
        StoreSettings {
            url: self.database.url.clone(),
            connections: u32::try_from(self.database.connections).unwrap_or(u32::MAX),
            timeout: ms(self.database.timeout_ms),
        }
    }

    pub fn auth(&self) -> AuthSettings {
        AuthSettings {
            secret: self.auth.secret.clone(),
            public_key: self.auth.public_key.clone(),
            issuer: self.auth.issuer.clone(),
            audience: self.auth.audience.clone(),
            leeway: self.auth.leeway_s,
        }
    }

    pub fn front(&self) -> FrontSettings {
        FrontSettings {
            body_limit: count(self.front.body_limit_bytes),
            body_within: ms(self.front.body_within_ms),
            // An answer that says `accepted` must still come in time.
            longest_wait: ms(self.front.request_within_ms.saturating_sub(1_000).min(10_000)),
        }
    }

    pub fn server(&self) -> ServerSettings {
        ServerSettings {
            connections: count(self.front.connections),
            header_within: ms(self.front.header_within_ms),
            request_within: ms(self.front.request_within_ms),
            drain: ms(self.process.drain_ms),
        }
    }

    pub fn intake(&self) -> IntakeSettings {
        IntakeSettings {
            durability: self.intake.durability,
            confirm_within: ms(self.intake.confirm_within_ms),
            sale_cache: ms(self.intake.sale_cache_ms),
            watch_every: ms(self.intake.watch_every_ms),
        }
    }

    pub fn sweep(&self) -> SweepSettings {
        SweepSettings {
            every: ms(self.sweep.every_ms),
            batch: count(self.sweep.batch),
            spacing: ms(self.sweep.spacing_ms),
            parked_after: ms(self.sweep.parked_after_ms),
        }
    }

    pub fn worker(&self) -> WorkerSettings {
        WorkerSettings {
            batch: count(self.worker.batch),
            lanes: count(self.worker.lanes),
            linger: ms(self.worker.linger_ms),
            lease: ms(self.worker.lease_ms),
            hold: ms(self.worker.hold_ms),
        }
    }

    pub fn maintenance(&self) -> MaintenanceSettings {
        MaintenanceSettings { every: ms(self.maintenance.every_ms), batch: self.maintenance.batch }
    }

    /// `None` to keep everything.
    pub fn purge_after(&self) -> Option<Duration> {
        let days = self.maintenance.purge_after_days;
        (days > 0).then(|| Duration::from_secs(days * 86_400))
    }

    fn address_rate(&self) -> Result<Option<Rate>, crate::domain::Invalid> {
        let text = &self.front.address_rate;
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }

    pub fn throttle(&self) -> ThrottleSettings {
        let header = Some(self.front.address_header.to_lowercase()).filter(|header| !header.is_empty());
        ThrottleSettings { rate: self.address_rate().unwrap_or_default(), header }
    }

    /// What cannot be read was refused before.
    pub fn providers(&self) -> Providers {
        Providers::parse(&self.payments.secrets).unwrap_or_default()
    }

    pub fn prefetch(&self) -> u16 {
        u16::try_from(self.worker.prefetch).unwrap_or(u16::MAX)
    }

    pub fn drain(&self) -> Duration {
        ms(self.process.drain_ms)
    }
}

/// A URL without its password.
pub fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let Some((user, host)) = authority.rsplit_once('@') else { return url.to_owned() };
    let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
    format!("{scheme}://{user}@{host}{path}")
}
