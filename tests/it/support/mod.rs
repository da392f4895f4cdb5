//! Shared by all tests: servers, a world per test, buyers, and waiting for facts.

mod backup;
mod binary;
mod books;
mod collector;
mod crowd;
mod dump;
mod events;
mod http;
mod login_key;
mod private_servers;
mod receiver;
mod servers;
mod sqlite_copy;
mod template;
mod wait;
mod world;

pub use backup::{Backup, everything_is_witnessed};
pub use binary::{Doorbuster, configure, run, run_with};
pub use books::at_rest;
pub use collector::{Collected, Collector};
pub use crowd::{Crowd, PAYMENT_SECRETS};
pub use events::{Event, Events};
pub use http::{Answer, Buyer, buy, request, send_raw, try_request};
pub use login_key::LoginKey;
pub use private_servers::{ask_redis, behind_proxy, private_redis, redis_second, roll_redis_back};
pub use receiver::{Manner, Receiver};
pub use servers::servers;
pub use wait::until;
pub use world::{Database, World, attempt, id, order, sale, two_hours_ago, verdicts};
