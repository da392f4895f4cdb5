//! Giving the endpoints of webhooks what has happened to orders, at least once.

mod courier;
mod leading;

pub use leading::Webhooks;
