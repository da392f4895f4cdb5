//! The range of every number. `config/default.toml` has the same ranges, with their reasons.

use super::sections::Config;

/// A key, its value, its minimum and its maximum.
type Range = (&'static str, u64, u64, u64);

/// Reports every number that is out of its range.
pub(super) fn check(config: &Config, mistakes: &mut Vec<String>) {
    let ranges = serving(config).into_iter().chain(servers(config)).chain(work(config));
    for (name, value, from, to) in ranges {
        if !(from..=to).contains(&value) {
            mistakes.push(format!("{name} is {value}; it must be {from} to {to}"));
        }
    }
    let (prefetch, batch) = (config.worker.prefetch, config.worker.batch);
    if prefetch != 0 && prefetch < batch {
        mistakes.push(format!("worker.prefetch is {prefetch}; it must be at least worker.batch ({batch})"));
    }
}

/// The buyers' side.
fn serving(config: &Config) -> [Range; 16] {
    [
        ("front.connections", config.front.connections, 1, 1_000_000),
        ("front.address_connections", config.front.address_connections, 0, 1_000_000),
        ("front.event_streams", config.front.event_streams, 0, 1_000_000),
        ("front.shed_reads_percent", config.front.shed_reads_percent, 0, 100),
        ("front.refuse_above_mb", config.front.refuse_above_mb, 0, 1_000_000),
        ("front.header_within_ms", config.front.header_within_ms, 100, 60_000),
        ("front.body_within_ms", config.front.body_within_ms, 100, 60_000),
        ("front.request_within_ms", config.front.request_within_ms, 1_000, 60_000),
        ("front.body_limit_bytes", config.front.body_limit_bytes, 256, 1_048_576),
        ("auth.jwks_every_s", config.auth.jwks_every_s, 1, 86_400),
        ("auth.longest_life_s", config.auth.longest_life_s, 60, 31_536_000),
        ("auth.leeway_s", config.auth.leeway_s, 0, 5),
        ("intake.confirm_within_ms", config.intake.confirm_within_ms, 10, 10_000),
        ("intake.sale_cache_ms", config.intake.sale_cache_ms, 0, 60_000),
        ("intake.watch_every_ms", config.intake.watch_every_ms, 5, 5_000),
        ("process.drain_ms", config.process.drain_ms, 0, 600_000),
    ]
}

/// Redis, the broker and the database.
fn servers(config: &Config) -> [Range; 12] {
    [
        ("redis.timeout_ms", config.redis.timeout_ms, 50, 10_000),
        ("queue.timeout_ms", config.queue.timeout_ms, 100, 60_000),
        ("queue.window", config.queue.window, 1, 100_000),
        ("queue.delivery_limit", config.queue.delivery_limit, 1, 1_000),
        ("queue.log_hours", config.queue.log_hours, 1, 24 * 366),
        ("queue.log_mb", config.queue.log_mb, 10, 10_000_000),
        ("database.connections", config.database.connections, 1, 1_000),
        ("database.timeout_ms", config.database.timeout_ms, 100, 60_000),
        ("gate.outbox_bound", config.gate.outbox_bound, 100, 10_000_000),
        ("gate.outbox_bound_in_all", config.gate.outbox_bound_in_all, 100, 10_000_000),
        ("gate.batch", config.gate.batch, 1, 256),
        ("gate.backlog", config.gate.backlog, 100, 1_000_000),
    ]
}

/// The work behind the front.
fn work(config: &Config) -> [Range; 18] {
    [
        ("sweep.every_ms", config.sweep.every_ms, 50, 60_000),
        ("sweep.batch", config.sweep.batch, 1, 10_000),
        ("sweep.grace_ms", config.sweep.grace_ms, 100, 600_000),
        ("sweep.overtaken_after_ms", config.sweep.overtaken_after_ms, 1_000, 3_600_000),
        ("sweep.parked_after_ms", config.sweep.parked_after_ms, 1_000, 3_600_000),
        ("sweep.spacing_ms", config.sweep.spacing_ms, 100, 3_600_000),
        ("worker.batch", config.worker.batch, 1, 1_000),
        ("worker.lanes", config.worker.lanes, 1, 16),
        ("worker.linger_ms", config.worker.linger_ms, 0, 1_000),
        ("worker.prefetch", config.worker.prefetch, 0, 65_535),
        ("worker.lease_ms", config.worker.lease_ms, 2_000, 5_000),
        ("worker.hold_ms", config.worker.hold_ms, 100, 600_000),
        ("maintenance.every_ms", config.maintenance.every_ms, 50, 60_000),
        ("traces.one_in", config.traces.one_in, 0, 1_000_000),
        ("traces.slow_ms", config.traces.slow_ms, 1, 600_000),
        ("audit.every_s", config.audit.every_s, 0, 86_400),
        ("maintenance.batch", config.maintenance.batch, 1, 1_000),
        ("maintenance.purge_after_days", config.maintenance.purge_after_days, 0, 36_500),
    ]
}
