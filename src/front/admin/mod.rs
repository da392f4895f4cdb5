//! The admin routes: creating, steering and auditing sales; acts on orders, dead letters, settings and endpoints;
//! the listings.

pub(super) mod dead_letters;
mod errors;
pub(super) mod live_settings;
mod orders;
mod payments;
pub(super) mod sale_acts;
pub(super) mod sale_events;
pub(super) mod sales;
pub(super) mod views;
pub(super) mod webhooks;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use super::state::Operations;

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new()
        .route("/v1/admin/sales", get(sales::list).post(sales::create))
        .route("/v1/admin/sales/{sale}", get(sales::show).post(sale_acts::act))
        .route("/v1/admin/sales/{sale}/acts", get(sale_acts::list))
        .route("/v1/admin/sales/{sale}/audit", get(sales::audit))
        .route("/v1/admin/sales/{sale}/events", get(sale_events::sale_events))
        .route("/v1/admin/sales/{sale}/check", get(sales::check))
        .route("/v1/admin/sales/{sale}/orders", get(orders::list))
        .route("/v1/admin/sales/{sale}/orders/{id}", get(orders::show).post(orders::act))
        .route("/v1/admin/acts", get(sale_acts::list_all))
        .route("/v1/admin/dead-letters", get(dead_letters::list))
        .route("/v1/admin/dead-letters/{letter}", get(dead_letters::show))
        .route("/v1/admin/dead-letters:replay", post(dead_letters::replay))
        .route("/v1/admin/dead-letters:fail", post(dead_letters::fail))
        .route("/v1/admin/settings", get(live_settings::list))
        .route("/v1/admin/settings:set", post(live_settings::set))
        .route("/v1/admin/settings:unset", post(live_settings::unset))
        .route("/v1/admin/payments", get(payments::list))
        .route("/v1/admin/webhooks", get(webhooks::list))
        .route("/v1/admin/webhooks:add", post(webhooks::add))
        .route("/v1/admin/webhooks:events", post(webhooks::choose))
        .route("/v1/admin/webhooks:remove", post(webhooks::remove))
        .route("/v1/admin/webhooks:on", post(webhooks::on))
        .route("/v1/admin/webhooks:off", post(webhooks::off))
        .route("/v1/admin/webhooks:rotate", post(webhooks::rotate))
        .route("/v1/admin/webhooks:retire", post(webhooks::retire))
        .route("/v1/admin/webhooks:redeliver", post(webhooks::redeliver))
}
