//! The buyers' routes: placing an order, reading orders and sales, cancelling an order, and the events of a sale.

mod cancel;
mod order_events;
mod place;
mod read;
mod refusals;
mod sale_events;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

pub(super) use place::OrderBody;
pub(super) use read::OrdersPage;
pub(super) use views::{OrderJson, SaleJson};

use super::state::Buyers;

/// `described` are further routes.
pub(super) fn router(buyers: Arc<Buyers>, described: Router<Arc<Buyers>>) -> Router {
    Router::new()
        .route("/v1/sales/{sale}/orders", post(place::place))
        .route("/v1/sales/{sale}/orders/mine", get(read::my_orders))
        .route("/v1/sales/{sale}/orders/{id}", get(read::order).post(cancel::cancel))
        .route("/v1/sales/{sale}", get(read::sale))
        .route("/v1/sales/{sale}/events", get(sale_events::sale_events))
        .route("/v1/sales/{sale}/orders/{id}/events", get(order_events::order_events))
        .merge(described)
        .with_state(buyers)
}
