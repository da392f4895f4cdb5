//! The stack under load while a seeded nemesis attacks it: kill -9 of every process and server, stopped processes, a
//! network that delays and loses data, purged queues, a full Redis. At the end everything heals, and the drill's
//! verdict compares each buyer's answers with gate and database.
//!
//! The nemesis attacks the servers without Doorbuster's knowledge, so it speaks their protocols itself. The same seed
//! plans the same faults at the same times; their effect depends on the machine.

mod attack;
mod disk;
mod error;
mod evidence;
mod fault;
mod layout;
mod losses;
mod missed;
mod nemesis;
mod operator;
mod plan;
mod proxy;
mod report;
mod sessions;
mod shop;
mod stack;
mod supervisor;
mod upgrade;

pub use attack::run;
pub use error::ChaosError;
pub use plan::{ChaosPlan, MOST_SALES};
pub use proxy::{Proxy, Weather};
pub use report::{ChaosReport, Inflicted, SaleReport};
