//! Serving buyers.

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::maintenance::{self, Maintained};
use crate::front::{self, Buyers};
use crate::intake::Intake;
use crate::maintenance::{NotCompared, RestartCheck, verify};
use crate::orders::Payments;
use crate::process::listen::for_buyers;
use crate::process::shared::Shared;
use crate::process::tasks::Tasks;
use crate::queue::{OrderLog, Publisher};

/// Starts the buyers' listener and the tasks of maintenance, which every front can do. The receiver says whether the
/// books of this Redis were compared: until then no order is taken.
pub(in crate::process) fn start(
    shared: &Shared<'_>,
    tasks: &mut Tasks,
    listener: TcpListener,
    publisher: Publisher,
) -> watch::Receiver<Result<(), NotCompared>> {
    let Shared { config, parts, orders, stop, .. } = shared;
    let log = OrderLog::with(config.queue(), publisher.clone());
    let compared = check_restarts(shared, tasks, &log);
    let intake = Intake::new(parts.gate.clone(), publisher, parts.store.clone(), config.intake());
    let payments = Payments::new(parts.store.clone(), orders.clone(), intake.clone());
    let relay = intake.relay().clone();
    let router = front::buyers(Buyers {
        intake,
        orders: orders.clone(),
        payments: payments.clone(),
        providers: config.providers(),
        throttle: config.throttle(),
        tokens: shared.tokens.clone(),
        settings: config.front(),
        stop: stop.clone(),
    });
    tasks.spawn("the buyers' listener", front::serve(listener, router, for_buyers(config), stop.clone()));
    maintenance::start(shared, tasks, Maintained { relay, payments, log });
    compared
}

/// After a Redis restart, the books are compared with the database's before the gate admits orders.
fn check_restarts(
    shared: &Shared<'_>,
    tasks: &mut Tasks,
    log: &OrderLog,
) -> watch::Receiver<Result<(), NotCompared>> {
    let (gate, store, log) = (shared.parts.gate.clone(), shared.parts.store.clone(), log.clone());
    shared
        .parts
        .gate
        .compare_restarts_with(move || Box::pin(verify(gate.clone(), store.clone(), log.clone())));
    let (check, compared) = RestartCheck::new(shared.parts.gate.clone());
    tasks.spawn("the comparison of redis", check.run(shared.stop.clone()));
    compared
}
