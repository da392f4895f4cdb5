//! Giving the endpoints of webhooks what has happened to orders, at least once.

mod courier;
mod leading;
mod message;
mod sold_out;

pub use leading::Webhooks;
