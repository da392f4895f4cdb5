//! The tables as SeaORM sees them. Their meaning is in the migrations that make them.

pub(super) mod gate_return;
pub(super) mod item;
pub(super) mod log_outbox;
pub(super) mod order;
pub(super) mod order_event;
pub(super) mod payment_event;
pub(super) mod replay_run;
pub(super) mod sale;
pub(super) mod sale_act;
pub(super) mod user_units;
