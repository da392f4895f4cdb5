//! The tables as SeaORM sees them. Their meaning is in the migrations that make them.

pub(in crate::store) mod backup;
pub(in crate::store) mod erasure;
pub(in crate::store) mod gate_return;
pub(in crate::store) mod installation;
pub(in crate::store) mod item;
pub(in crate::store) mod live_setting;
pub(in crate::store) mod log_outbox;
pub(in crate::store) mod log_position;
pub(in crate::store) mod operator_act;
pub(in crate::store) mod order;
pub(in crate::store) mod order_event;
pub(in crate::store) mod payment_event;
pub(in crate::store) mod place;
pub(in crate::store) mod replay_run;
pub(in crate::store) mod sale;
pub(in crate::store) mod sale_act;
pub(in crate::store) mod user_units;
pub(in crate::store) mod webhook_delivery;
pub(in crate::store) mod webhook_endpoint;
pub(in crate::store) mod webhook_event;
pub(in crate::store) mod webhook_sale;
