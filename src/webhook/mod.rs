//! How an event reaches the endpoint of a shop: its signature, as Standard Webhooks has it, and a client that does not go
//! where it should not.

mod addresses;
mod client;
mod secret;

pub use client::{BadUrl, EndpointUrl, NotDelivered, Sender};
pub use secret::{InvalidSecret, Secret, Signed};
