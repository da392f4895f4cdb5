//! HTTP: the buyers' listener and the operations listener. Only this module uses axum, and only [`codes`] sets the
//! status of each refusal.
//!
//! In reading order: [`state`] is shared by the routes, [`request`] reads paths and headers, [`buyers`] sells,
//! [`webhooks`] takes payments, [`admin`] serves operators, [`problem`] writes refusals, [`server`] listens.

mod addresses;
mod admin;
mod auth;
mod body;
mod buyers;
mod codes;
mod connection;
mod events;
mod header_names;
mod keyed_limit;
mod known_problems;
mod lasting;
mod live;
mod open_counts;
mod openapi;
mod operations;
mod order_errors;
mod problem;
mod readiness;
mod refusal_log;
mod request;
mod routes;
mod server;
mod signatures;
mod state;
mod suspected;
mod throttle;
mod traceparent;
mod webhooks;

use std::sync::Arc;

pub use addresses::{InvalidNetwork, TrustedProxies};
pub use auth::{
    AuthSettings, BuyerTokens, InvalidPublicKey, JwkSetError, JwkSetSource, KeyRing, OperatorTokens, Role,
    Signer, check_public_key,
};
pub use events::{SaleStreams, StreamRoom};
pub use live::{LiveFront, LiveFrontValues};
pub use openapi::Api;
pub use readiness::{Dependency, Readiness};
pub use server::{App, ServerSettings, serve};
pub use signatures::{Providers, SecretsError, signature};
pub use state::{Buyers, FrontSettings, Monitoring, Operations};
pub use throttle::ThrottleSettings;

/// The routes for buyers and payment providers.
pub fn buyers(buyers: Buyers) -> App {
    let buyers = Arc::new(buyers);
    let throttle = throttle::Throttle::new(&buyers.throttle, &buyers.live, &buyers.tokens);
    let router = buyers::router(buyers.clone(), Api::Buyers.routes())
        .merge(webhooks::router(buyers))
        // After the last route: it counts for those that are there.
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::method_not_allowed);
    App { router, throttle: Some(throttle) }
}

/// The routes for operators and monitoring.
pub fn operations(operations: Operations) -> App {
    App { router: operations::router(operations, Api::Operations.routes()), throttle: None }
}

/// The routes for monitoring alone.
pub fn monitoring(monitoring: Monitoring) -> App {
    App { router: operations::monitoring_router(monitoring), throttle: None }
}
