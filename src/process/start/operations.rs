//! Serving operators: liveness, readiness, metrics and the admin API; and monitoring alone, where it has an address of
//! its own.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::control::{DeadLetterActs, SettingActs, WebhookActs};
use crate::front::{self, Monitoring, Operations, OperatorTokens, ServerSettings, StreamRoom};
use crate::process::listen::for_operators;
use crate::process::shared::Shared;
use crate::process::tasks::Tasks;

/// What operators may have done in the database at once.
const AT_ONCE: usize = 4;

/// Streams of events for operators: half of the connections that the listener has.
const STREAMS: usize = 64;

pub(in crate::process) fn start(
    shared: &Shared<'_>,
    tasks: &mut Tasks,
    listener: TcpListener,
    monitoring_listener: Option<TcpListener>,
    monitoring: Monitoring,
) {
    let (parts, config) = (shared.parts, shared.config);
    let dead_letters = shared.dead_letters.clone();
    let (gate, store) = (parts.gate.clone(), parts.store.ahead_of_buyers(AT_ONCE));
    let app = front::operations(Operations {
        control: shared.control.clone(),
        dead_letters: DeadLetterActs::new(shared.dead_letters.clone(), gate.clone(), store.clone()),
        live_settings: SettingActs::new(Arc::new(config.clone()), store.clone()),
        webhooks: WebhookActs::new(store.clone(), config.webhooks.allow_private),
        orders: shared.orders.on(store.clone()),
        gate,
        store,
        tokens: OperatorTokens::new(&shared.auth, shared.keys.clone()),
        settings: config.front(),
        depths: Arc::new(move || dead_letters.depths()),
        streams: Arc::default(),
        room: StreamRoom::new(STREAMS),
        stop: shared.stop.clone(),
        monitoring: monitoring.clone(),
    });
    let serving = front::serve(listener, app, for_operators(config), shared.stop.clone());
    tasks.spawn("the operations listener", serving);
    if let Some(listener) = monitoring_listener {
        let app = front::monitoring(monitoring);
        let settings = ServerSettings { name: "monitoring", ..for_operators(config) };
        let serving = front::serve(listener, app, settings, shared.stop.clone());
        tasks.spawn("the monitoring listener", serving);
    }
}
