//! Doorbuster, a flash-sale order engine.
//!
//! One atomic Lua script in Redis decides who gets a unit, RabbitMQ carries the order, and a pool of workers writes
//! it to a database through SeaORM. The modules depend on each other in one direction only; read them in this order:
//!
//! 1. [`domain`]: sales, orders, terms and verdicts, without I/O.
//! 2. The four seams, one per kind of server, which never import each other: [`gate`] and [`lease`] (Redis), [`queue`]
//!    (RabbitMQ), [`store`] (the database). [`link`] keeps them connected, [`fault`] makes them fail in tests,
//!    [`telemetry`] lists what they measure.
//! 3. The path of an order: [`intake`] takes a request and publishes the order, [`worker`] turns deliveries into rows,
//!    [`settlement`] reports the committed outcome to the gate.
//! 4. After the purchase: [`orders`] pays, cancels, refunds and expires; [`control`] has the operator's acts.
//! 5. [`audit`] compares gate, queue and database. [`recovery`] repairs what differs, rebuilds a gate, and replays
//!    orders after an outage. [`maintenance`] does the work that nobody requests, each task under its own lease.
//! 6. [`front`]: HTTP for buyers, operators and payment providers.
//! 7. [`rehearsal`]: private servers, drills with a crowd of buyers, chaos, benchmarks.
//! 8. [`process`] turns a configuration into a running process; [`cli`] is the command line.

// The futures of whole commands nest deeper than the compiler's default of 128 types; the optimiser notices first, so
// only a release build would fail.
#![recursion_limit = "256"]
#![warn(missing_docs)]

pub mod audit;
pub mod cli;
pub mod control;
pub mod domain;
pub mod fault;
pub mod front;
pub mod gate;
pub mod intake;
pub mod lease;
pub mod link;
pub mod maintenance;
pub mod orders;
pub mod process;
pub mod queue;
pub mod recovery;
pub mod rehearsal;
pub mod settlement;
pub mod store;
pub mod telemetry;
pub mod trace;
pub mod webhook;
pub mod worker;
