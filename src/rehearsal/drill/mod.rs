//! Rehearsed load: a crowd of buyers over HTTP, and a verdict from the books.
//!
//! The crowd is open-loop: each click has its time, whether or not earlier ones were answered, and latency counts
//! from that time. A drill uses only Doorbuster's HTTP contract, so it can judge a private stack and a remote one
//! alike.

mod admin;
mod click;
mod contradictions;
mod crowd;
mod error;
mod final_books;
mod follow_up;
mod follower;
mod followers;
mod http;
mod items;
mod operator;
mod plan;
mod progress;
mod reads;
mod report;
mod returns;
mod run;
mod sale;
mod target;
mod verdict;

pub use error::DrillError;
pub use followers::Followers;
pub use operator::{Act, Steering};
pub use plan::{Arrival, Clicks, FollowUp, Plan, Preset};
pub use progress::Progress;
pub use reads::read_in_the_end;
pub use report::{Latency, Report};
pub use returns::{Returns, run as run_returns};
pub use run::{DrillRun, run, run_during};
pub use target::{Target, payment_secret, until_ready};
pub use verdict::Verdict;
