//! How fast Doorbuster is, compared with what the servers alone can do.
//!
//! A rate and its ceiling are measured alternately in the same run: machines differ and are shared, so the ratio says
//! more than the rate. Other figures have a limit.

mod accepted;
mod bare;
mod bare_sql;
mod buyers;
mod command;
mod cost;
mod error;
mod events;
mod fronts;
mod growth;
mod large_sale;
mod lease;
mod load;
mod memory;
mod orders;
mod parts;
mod payments;
mod persist;
mod proc;
mod refusals;
mod replay;
mod report;
mod restarts;
mod restore;
mod rush;
mod sample;
mod size;
mod speed;
mod stats;
mod strangers;
mod traces;
mod webhooks;
mod world;

pub use bare::http as bare_http;
pub use error::BenchError;
pub use lease::run as lease;
pub use replay::run as replay;
pub use report::{Figure, Report, Wanted};
pub use restore::{Extent, run as restore};
pub use size::run as size;
pub use speed::{Part, run as speed};
