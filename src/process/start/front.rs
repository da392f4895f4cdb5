//! Serving buyers.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::maintenance::{self, Maintained};
use crate::front::{self, BuyerTokens, Buyers, SaleStreams};
use crate::gate::OrderChanges;
use crate::intake::Intake;
use crate::maintenance::{NotCompared, RestartCheck};
use crate::orders::{PaymentBatches, PaymentLog, Payments};
use crate::process::config::WithoutBroker;
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
    let (check, compared) = RestartCheck::new(parts.gate.clone());
    tasks.spawn("the comparison of redis", check.run(stop.clone()));
    let intake = Intake::new(parts.gate.clone(), publisher, parts.store.clone(), config.intake());
    let may_wait = config.payments.without_broker == WithoutBroker::Accept;
    let payment_log = PaymentLog { log: log.clone(), may_wait };
    let payments = Payments::new(parts.store.clone(), orders.clone(), intake.clone(), payment_log);
    let relay = intake.relay().clone();
    let app = front::buyers(Buyers {
        intake,
        orders: orders.clone(),
        payments: PaymentBatches::of(payments.clone()),
        providers: config.providers(),
        throttle: config.throttle(),
        live: shared.live.front.clone(),
        tokens: Arc::new(BuyerTokens::new(&shared.auth, shared.keys.clone())),
        settings: config.front(),
        streams: Arc::<SaleStreams>::default(),
        room: config.stream_room(),
        changes: OrderChanges::of(&parts.gate),
        stop: stop.clone(),
    });
    tasks.spawn("the buyers' listener", front::serve(listener, app, for_buyers(config), stop.clone()));
    maintenance::start(shared, tasks, Maintained { relay, payments, log });
    compared
}
