//! Every metric that a process may show: what `/metrics` says of it, and what the alerts and the documents may use.
//!
//! Names follow Prometheus's conventions: the prefix `doorbuster_`, base units, `_total` for counters. Labels have few
//! values: a route, a reason, a queue. Only [`SALE_GAUGES`](super::SALE_GAUGES) have the names of sales.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows, from zero at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// What it says, in a sentence.
    pub help: &'static str,
}

/// Requests and calls of servers, in seconds.
const SHORT: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Ways that include waiting in a queue, in seconds.
const LONG: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Orders in a batch.
const ORDERS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 800.0, 1_000.0];

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

const fn histogram(name: &'static str, buckets: &'static [f64], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram(buckets), help }
}

/// All of them, ordered by the part of the engine that they tell of.
pub const METRICS: &[Metric] = &[
    // The listeners.
    histogram(
        "doorbuster_http_request_duration_seconds",
        SHORT,
        "Time from a request's headers to its response, by route, method and status.",
    ),
    gauge(
        "doorbuster_degraded_mode",
        "1 while the process does less than it could because a live setting says so, by mode.",
    ),
    gauge("doorbuster_http_connections", "Open connections of a listener."),
    gauge("doorbuster_event_streams", "Open streams of events."),
    counter(
        "doorbuster_front_connections_refused_total",
        "Connections that were closed at once, because their address had too many.",
    ),
    counter("doorbuster_front_problems_total", "Refused requests, by problem code and reason."),
    counter("doorbuster_front_panics_total", "Requests that failed by a panic."),
    counter("doorbuster_front_accepted_total", "New orders that this front gave to their buyers."),
    counter("doorbuster_front_jwks_failures_total", "Failed attempts to read the login's keys again."),
    counter("doorbuster_intake_refused_from_memory_total", "Buyers refused without a call of the gate."),
    // Gate, outbox and relay.
    histogram("doorbuster_gate_admit_seconds", SHORT, "Time of an admission's call of Redis."),
    counter(
        "doorbuster_gate_frozen_total",
        "Sales frozen when a restarted Redis was compared: it had lost writes.",
    ),
    counter("doorbuster_gate_rebuilt_total", "Sales rebuilt in the gate."),
    counter("doorbuster_gate_adopted_total", "Live orders that the gate did not know, and holds now."),
    histogram("doorbuster_relay_confirm_seconds", SHORT, "Time that the broker took to confirm a message."),
    counter(
        "doorbuster_relay_published_total",
        "Orders published by the relay: confirmed, or left to the sweep.",
    ),
    gauge(
        "doorbuster_redis_clock_difference_seconds",
        "Difference between the clocks of this process and Redis.",
    ),
    // Workers and their queue.
    counter("doorbuster_worker_orders_total", "Orders whose row this worker committed, by status."),
    histogram("doorbuster_worker_persist_seconds", SHORT, "Time of a batch's transaction."),
    histogram("doorbuster_worker_batch_orders", ORDERS, "Orders in a batch."),
    histogram(
        "doorbuster_order_persist_lag_seconds",
        LONG,
        "Time from the acceptance of an order to its row, by the clocks of Redis and of the worker.",
    ),
    counter("doorbuster_worker_duplicates_total", "Deliveries of orders that had a row already."),
    counter(
        "doorbuster_worker_fence_refused_total",
        "Orders not written because their lease had been taken over.",
    ),
    counter(
        "doorbuster_worker_lease_busy_total",
        "Orders that waited because another process held their lease.",
    ),
    counter("doorbuster_worker_waits_total", "Failed attempts at a batch, while a server did not answer."),
    counter(
        "doorbuster_worker_redeliveries_total",
        "Deliveries of messages that a worker had been given before.",
    ),
    counter("doorbuster_worker_suspects_total", "Deliveries that were in a batch when their worker ended."),
    counter(
        "doorbuster_worker_late_acks_total",
        "Acks that the broker did not take, so that the message comes again.",
    ),
    counter("doorbuster_worker_dead_letters_total", "Messages written to the dead-letter queue, by reason."),
    counter("doorbuster_worker_sales_paused_total", "Sales paused because gate and database disagreed."),
    counter("doorbuster_worker_consumer_restarts_total", "Consumers restarted because they had gone quiet."),
    gauge("doorbuster_queue_messages", "Ready messages of a queue."),
    gauge(
        "doorbuster_dead_letters_oldest_seconds",
        "Age of the oldest unresolved dead letter; 0 if there is none.",
    ),
    counter("doorbuster_sweep_published_total", "Orders that the sweep published again."),
    counter("doorbuster_sweep_settled_total", "Orders with a row that the sweep settled."),
    // Leases.
    counter("doorbuster_leases_renewed_total", "Leases renewed."),
    counter("doorbuster_lease_renewals_failed_total", "Renewals that Redis did not answer in time."),
    counter("doorbuster_leases_lost_total", "Leases lost while in use, by reason."),
    // Orders and payments.
    counter(
        "doorbuster_orders_changed_total",
        "Changes of orders after their row was written, by act. What a payment provider's event changes is in doorbuster_payments_ended_total.",
    ),
    counter(
        "doorbuster_orders_changed_unlogged_total",
        "Changes that were answered before the order log had them, because the broker was away.",
    ),
    counter("doorbuster_payments_ended_total", "Payments with an outcome, by state."),
    counter("doorbuster_payments_forged_total", "Payment callbacks refused for their signature."),
    counter("doorbuster_payments_stale_total", "Payment callbacks refused for their time."),
    gauge("doorbuster_payments_pending", "Payments that could not be applied yet."),
    gauge("doorbuster_payments_late", "Late payments that must be refunded."),
    // Maintenance.
    gauge(
        "doorbuster_maintenance_returns_waiting",
        "Ended orders whose units have not returned to the gate.",
    ),
    gauge("doorbuster_maintenance_oldest_return_seconds", "Age of the oldest of these returns."),
    gauge("doorbuster_maintenance_orders_overdue", "Unpaid orders past their deadline."),
    counter("doorbuster_maintenance_returned_total", "Ended orders whose units maintenance returned."),
    gauge("doorbuster_sale_acts_pending", "Changes to sales that are unfinished."),
    // Webhooks.
    gauge(
        "doorbuster_webhook_deliveries_waiting",
        "Webhooks that wait for their endpoints, or for a build that knows their events.",
    ),
    gauge(
        "doorbuster_webhook_deliveries_given_up",
        "Webhooks that were given up, until an operator has them delivered again.",
    ),
    gauge("doorbuster_webhook_endpoints_off", "Endpoints of webhooks that are switched off."),
    counter("doorbuster_webhooks_delivered_total", "Webhooks that their endpoints have taken."),
    counter("doorbuster_webhooks_failed_total", "Requests with a webhook that failed."),
    counter("doorbuster_webhooks_given_up_total", "Webhooks that were given up."),
    // Traces.
    counter(
        "doorbuster_trace_spans_total",
        "Spans that the collector of traces has taken, and those that were dropped.",
    ),
    // The order log, backups and the database.
    gauge(
        "doorbuster_order_log_oldest_unwritten_seconds",
        "For how long the order log has lacked changes of the database; 0 if it lacks none.",
    ),
    counter("doorbuster_order_log_written_total", "Changes written to the order log by maintenance."),
    gauge(
        "doorbuster_order_log_begins_timestamp_seconds",
        "When the order log begins; 0 if it has everything that ever happened.",
    ),
    counter(
        "doorbuster_order_log_bytes_total",
        "Bytes of the messages that the broker has confirmed for the order log.",
    ),
    gauge("doorbuster_order_log_kept_seconds", "How long the order log keeps its entries."),
    gauge("doorbuster_database_backup_timestamp_seconds", "When the last marked backup began."),
    gauge("doorbuster_database_behind", "1 while the database lacks commits that it had confirmed."),
    counter("doorbuster_database_overload_total", "Queries not made because no connection was free in time."),
    gauge("doorbuster_database_connections_in_use", "Connections to the database that are in use."),
    gauge("doorbuster_database_connections_max", "Connections to the database that this process may have."),
    gauge("doorbuster_dependency_up", "1 if this process can use the server."),
    // The comparison of the books.
    counter("doorbuster_audit_runs_total", "Comparisons of all books."),
    counter("doorbuster_audit_sales_paused_total", "Sales paused because their books did not balance."),
    gauge("doorbuster_audit_sales_out_of_balance", "Sales whose books do not balance."),
    gauge("doorbuster_audit_sales_to_rebuild", "Sales that Redis has lost, or some of whose writes."),
    gauge("doorbuster_audit_sales_unjudged", "Sales whose books could not be judged, by reason."),
];
