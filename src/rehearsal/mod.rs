//! Everything outside a production sale: private servers, rehearsed load, the stack under attack, and benchmarks.
//!
//! - [`servers`]: Redis, RabbitMQ and databases as children of this process.
//! - [`drill`]: a crowd of buyers over HTTP, and a verdict from the books.
//! - [`chaos`]: a drill during which a seeded nemesis attacks every part of the stack.
//! - [`judge`]: decides whether every promise was kept, from what buyers heard and what the servers hold.
//! - [`bench`]: measurements next to what the servers alone can do.

pub mod bench;
pub mod chaos;
pub mod drill;
pub mod judge;
pub mod servers;
