//! The work that nobody requests. Each task takes its own lease, so that only one front does it at a time.

use std::time::Duration;

use crate::intake::Relay;
use crate::maintenance::{
    Adopter, BooksCheck, LogWriter, PAYMENTS, Rebuilder, Retention, Rounds, Sweep, Webhooks, log_reach,
    schedule,
};
use crate::orders::Payments;
use crate::process::config::RebuildPolicy;
use crate::process::shared::Shared;
use crate::process::tasks::Tasks;
use crate::queue::OrderLog;
use crate::recovery::Rebuild;
use crate::store::Store;

/// The parts of its front that maintenance uses.
pub(super) struct Maintained {
    pub(super) relay: Relay,
    pub(super) payments: Payments,
    pub(super) log: OrderLog,
}

pub(super) fn start(shared: &Shared<'_>, tasks: &mut Tasks, front: Maintained) {
    let (config, stop) = (shared.config, &shared.stop);
    if config.audit.every_s > 0 {
        tasks.spawn("the audit", books_check(shared).run(stop.clone()));
    }
    if config.gate.rebuild != RebuildPolicy::Manual {
        tasks.spawn("the rebuild", rebuilder(shared, front.log.clone()).run(stop.clone()));
    }
    tasks.spawn("the adoption", adopter(shared).run(stop.clone()));
    tasks.spawn("the sweep", sweep(shared, front.relay).run(stop.clone()));
    tasks.spawn("the log writer", log_writer(shared, front.log.clone()).run(stop.clone()));
    tasks.spawn("the webhooks", webhooks(shared).run(stop.clone()));
    tasks.spawn("retention", retention(shared).run(stop.clone()));
    tasks.spawn("maintenance", rounds(shared, &front.payments, &front.log).run(stop.clone()));
}

/// A handle of the database for one of these tasks.
fn store(shared: &Shared<'_>) -> Store {
    shared.parts.store.ahead_of_buyers(1)
}

fn books_check(shared: &Shared<'_>) -> BooksCheck {
    let (parts, audit) = (shared.parts, &shared.config.audit);
    BooksCheck {
        gate: parts.gate.clone(),
        store: store(shared),
        leases: parts.leases.clone(),
        control: shared.control.clone(),
        gauges: parts.sale_gauges.clone(),
        every: Duration::from_secs(audit.every_s),
        pause_sale: audit.pause_sale,
    }
}

fn rebuilder(shared: &Shared<'_>, log: OrderLog) -> Rebuilder {
    let parts = shared.parts;
    Rebuilder {
        rebuild: Rebuild {
            gate: parts.gate.clone(),
            store: store(shared),
            leases: parts.leases.clone(),
            dead_letters: shared.dead_letters.clone(),
            log,
            // If orders may be lost, the sale stays frozen, and the alert calls a person.
            unattended: true,
            stop: shared.stop.clone(),
        },
        lost_sales_too: shared.config.gate.rebuild == RebuildPolicy::Auto,
    }
}

fn adopter(shared: &Shared<'_>) -> Adopter {
    let parts = shared.parts;
    Adopter { gate: parts.gate.clone(), store: store(shared), leases: parts.leases.clone() }
}

fn sweep(shared: &Shared<'_>, relay: Relay) -> Sweep {
    let parts = shared.parts;
    Sweep {
        gate: parts.gate.clone(),
        leases: parts.leases.clone(),
        relay,
        dead_letters: shared.dead_letters.clone(),
        store: store(shared),
        settings: shared.config.sweep(),
    }
}

fn log_writer(shared: &Shared<'_>, log: OrderLog) -> LogWriter {
    let (parts, every) = (shared.parts, shared.config.maintenance().every);
    LogWriter { gate: parts.gate.clone(), store: store(shared), leases: parts.leases.clone(), log, every }
}

fn webhooks(shared: &Shared<'_>) -> Webhooks {
    let (parts, allow_private) = (shared.parts, shared.config.webhooks.allow_private);
    let (gate, store) = (parts.gate.clone(), parts.store.ahead_of_buyers(2));
    Webhooks { gate, store, leases: parts.leases.clone(), allow_private }
}

fn retention(shared: &Shared<'_>) -> Retention {
    let leases = shared.parts.leases.clone();
    Retention { control: shared.control.clone(), leases, purge_after: shared.config.purge_after() }
}

fn rounds(shared: &Shared<'_>, payments: &Payments, log: &OrderLog) -> Rounds {
    let (parts, config) = (shared.parts, shared.config);
    let store = store(shared);
    let mut scheduled = schedule(&shared.control);
    let kept = Duration::from_secs(config.queue.log_hours * 3_600);
    scheduled.push(log_reach(log, &store, kept));
    Rounds {
        gate: parts.gate.clone(),
        leases: parts.leases.clone(),
        payments: payments.on(&parts.store.ahead_of_buyers(PAYMENTS)),
        store,
        behind_buyers: parts.store.clone(),
        scheduled,
        settings: config.maintenance(),
    }
}
