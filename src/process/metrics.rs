//! The recorder of this process's metrics.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::telemetry::{Kind, METRICS};

/// Installs the recorder, once per process however often its tasks are started, and sets the counters to zero.
pub(super) fn handle() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        // Fails only if another recorder is already installed; that one is then used.
        let _ = metrics::set_global_recorder(recorder);
        describe();
        handle
    });
    begin_at_zero();
    handle.clone()
}

/// With the buckets of each histogram; without them, it would be a summary, which cannot be added up over processes.
fn builder() -> PrometheusBuilder {
    METRICS.iter().fold(PrometheusBuilder::new(), |builder, metric| {
        let Kind::Histogram(buckets) = metric.kind else { return builder };
        let name = Matcher::Full(metric.name.to_owned());
        // Fails only without buckets.
        builder.set_buckets_for_metric(name, buckets).unwrap_or_default()
    })
}

fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram(_) => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
}

/// A counter that appears only with its first event shows no increase, so an alert on it would miss that event. A
/// test compares these names with the alerts.
fn begin_at_zero() {
    for name in [
        "doorbuster_front_panics_total",
        "doorbuster_payments_forged_total",
        "doorbuster_payments_stale_total",
        "doorbuster_sweep_published_total",
        "doorbuster_worker_consumer_restarts_total",
        "doorbuster_worker_fence_refused_total",
        "doorbuster_worker_sales_paused_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    for state in ["applied", "late", "mismatch"] {
        metrics::counter!("doorbuster_payments_ended_total", "state" => state).increment(0);
    }
    metrics::counter!("doorbuster_relay_published_total", "result" => "left").increment(0);
    metrics::counter!("doorbuster_worker_orders_total", "status" => "failed").increment(0);
    for reason in ["taken", "ended", "held_too_long"] {
        metrics::counter!("doorbuster_leases_lost_total", "reason" => reason).increment(0);
    }
}
