//! The recorder of this process's metrics.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Installs the recorder, once per process however often its tasks are started, and sets the counters to zero.
pub(super) fn handle() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // Fails only if another recorder is already installed; that one is then used.
        let _ = metrics::set_global_recorder(recorder);
        handle
    });
    begin_at_zero();
    handle.clone()
}

/// A counter that appears only with its first event shows no increase, so an alert on it would miss that event. A
/// test compares these names with the alerts.
fn begin_at_zero() {
    for name in [
        "front_panics_total",
        "payments_forged_total",
        "payments_stale_total",
        "sweep_published_total",
        "worker_consumer_restarts_total",
        "worker_fence_refused_total",
        "worker_sales_paused_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    for state in ["applied", "late", "mismatch"] {
        metrics::counter!("payments_ended_total", "state" => state).increment(0);
    }
    metrics::counter!("relay_published_total", "result" => "left").increment(0);
    metrics::counter!("worker_orders_total", "status" => "failed").increment(0);
    for why in ["taken", "ended", "held too long"] {
        metrics::counter!("leases_lost_total", "why" => why).increment(0);
    }
}
