//! Writing orders to the database.

use tokio::sync::watch;

use crate::process::shared::Shared;
use crate::process::tasks::Tasks;
use crate::queue::{Consumer, Consuming};
use crate::worker::Worker;

/// The receiver follows the worker's consumer.
pub(in crate::process) fn start(shared: &Shared<'_>, tasks: &mut Tasks) -> watch::Receiver<Consuming> {
    let (parts, config) = (shared.parts, shared.config);
    let worker = Worker {
        gate: parts.gate.clone(),
        leases: parts.leases.clone(),
        store: parts.store.clone(),
        dead_letters: shared.dead_letters.clone(),
        gauges: parts.sale_gauges.clone(),
        settings: config.worker(),
        pace: shared.live.pace.clone(),
    };
    let consumer = Consumer::new(config.queue(), config.prefetch());
    let consuming = consumer.watch();
    tasks.spawn("the worker", worker.run(consumer, shared.stop.clone()));
    consuming
}
