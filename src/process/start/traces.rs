//! Recording traces, if there is a collector.

use crate::process::config::Config;
use crate::process::running::Role;
use crate::process::tasks::Tasks;

#[cfg(feature = "traces")]
pub(in crate::process) fn start(config: &Config, role: Role, tasks: &mut Tasks) {
    let Some(collector) = config.collector() else { return };
    let service = match role {
        Role::Front => "doorbuster-front",
        Role::Worker => "doorbuster-worker",
        Role::Both => "doorbuster",
    };
    if let Some(exporter) = crate::trace::Exporter::open(service, collector, config.sampling()) {
        tasks.spawn("sending traces", exporter.run(tasks.stop_token()));
    }
}

/// The check of the configuration has refused a collector.
#[cfg(not(feature = "traces"))]
pub(in crate::process) fn start(_: &Config, _: Role, _: &mut Tasks) {}
