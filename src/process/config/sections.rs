//! The sections and keys of the configuration. Their units, ranges and reasons are in `config/default.toml`, and only
//! there, so that they cannot disagree.
#![allow(missing_docs)]

use serde::{Deserialize, Serialize};

use crate::intake::DurabilityPolicy;
use crate::link::Installation;

/// Who rebuilds a sale whose gate lost writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RebuildPolicy {
    /// An operator, with `doorbuster rebuild`.
    Manual,
    /// A front, if Redis still has the sale and lacks only writes; otherwise an operator.
    Behind,
    /// A front.
    Auto,
}

/// What a payment provider is answered while the broker is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutBroker {
    /// 503, so that the provider sends the event again.
    Refuse,
    /// 200 once the database has the event.
    Accept,
}

macro_rules! sections {
    ($($name:ident { $($(#[$attribute:meta])* $key:ident: $type:ty),+ $(,)? })+) => {
        $(#[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct $name { $($(#[$attribute])* pub $key: $type),+ })+
    };
}

sections! {
    Config {
        front: Front, operations: Operations, auth: Auth, redis: Redis, queue: Queue,
        database: Database, gate: Gate, intake: Intake, sweep: Sweep, worker: Worker,
        maintenance: Maintenance, audit: Audit, payments: Payments, webhooks: Webhooks, traces: Traces, process: Process, log: Log,
        // Not configured, but learned from the servers. All settings made from one configuration share it.
        #[serde(skip)] installation: Installation,
    }
    Front {
        listen: String, connections: u64, header_within_ms: u64, body_within_ms: u64,
        request_within_ms: u64, body_limit_bytes: u64, address_rate: String, suspected_rate: String,
        address_connections: u64, event_streams: u64, buyer_rate: String, trusted_proxies: String, address_header: String,
        read_only: bool, shed_reads_percent: u64, refuse_above_mb: u64,
    }
    Operations { listen: String, exposed: bool, monitoring_listen: String }
    Auth {
        secret: String, secret_file: String, public_key: String, jwks: String, jwks_every_s: u64, issuer: String,
        audience: String, operators_audience: String, role_claim: String, longest_life_s: u64, leeway_s: u64,
    }
    Redis { url: String, url_file: String, prefix: String, timeout_ms: u64, check_settings: bool }
    Queue {
        url: String, url_file: String, prefix: String, timeout_ms: u64, window: u64, delivery_limit: u64, log_hours: u64,
        log_mb: u64,
    }
    Database { url: String, url_file: String, connections: u64, timeout_ms: u64 }
    Gate { outbox_bound: u64, outbox_bound_in_all: u64, batch: u64, backlog: u64, rebuild: RebuildPolicy }
    Intake {
        durability: DurabilityPolicy, confirm_within_ms: u64, sale_cache_ms: u64, watch_every_ms: u64,
    }
    Sweep { every_ms: u64, batch: u64, grace_ms: u64, overtaken_after_ms: u64, parked_after_ms: u64, spacing_ms: u64 }
    Worker {
        batch: u64, lanes: u64, linger_ms: u64, prefetch: u64, lease_ms: u64, hold_ms: u64, persist: bool,
    }
    Maintenance { every_ms: u64, batch: u64, purge_after_days: u64 }
    Audit { every_s: u64, pause_sale: bool }
    Payments { secrets: String, secrets_file: String, without_broker: WithoutBroker }
    Webhooks { allow_private: bool }
    Traces { url: String, headers: String, headers_file: String, one_in: u64, slow_ms: u64 }
    Process { drain_ms: u64, plaintext_hosts: String }
    Log { format: String, level: String }
}

impl Config {
    /// Reads secrets, and URLs with their passwords, from the files that the configuration names. A file counts only where
    /// the value itself is as in `defaults`: a server that the command line names is the one that is used.
    pub(super) fn with_secrets_from_files(mut self, defaults: &Self, mistakes: &mut Vec<String>) -> Self {
        for (name, value, default, file) in [
            ("auth.secret_file", &mut self.auth.secret, &defaults.auth.secret, &self.auth.secret_file),
            (
                "payments.secrets_file",
                &mut self.payments.secrets,
                &defaults.payments.secrets,
                &self.payments.secrets_file,
            ),
            (
                "traces.headers_file",
                &mut self.traces.headers,
                &defaults.traces.headers,
                &self.traces.headers_file,
            ),
            ("redis.url_file", &mut self.redis.url, &defaults.redis.url, &self.redis.url_file),
            ("queue.url_file", &mut self.queue.url, &defaults.queue.url, &self.queue.url_file),
            ("database.url_file", &mut self.database.url, &defaults.database.url, &self.database.url_file),
        ] {
            if value == default && !file.is_empty() {
                match std::fs::read_to_string(file) {
                    Ok(text) => text.trim_end().clone_into(value),
                    Err(error) => mistakes.push(format!("{name} {file}: {error}")),
                }
            }
        }
        self
    }
}
