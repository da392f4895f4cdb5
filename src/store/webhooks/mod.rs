//! Webhooks: which endpoints there are, what they are to be given, and what they have not taken yet.
//!
//! The transaction of a change writes one row, whatever the number of endpoints, and none if there are none. Later the row
//! becomes a delivery for each endpoint, and a delivery leaves when its endpoint has taken it.

mod announce;
mod deliveries;
mod endpoints;
mod sales;

pub(in crate::store) use announce::Reached;
pub use deliveries::{NotTaken, WebhookDelivery};
pub use endpoints::{Endpoint, EndpointState, Undelivered};
