//! Doorbuster, the flash-sale order engine.
//!
//! One atomic Lua script in Redis decides who gets a unit, RabbitMQ carries the order, a pool of
//! workers persists it through SeaORM. The modules in reading order:
//!
//! - [`domain`]: sales, orders, verdicts. No I/O and no clock.
//! - [`gate`], [`lease`], [`queue`], [`store`]: the four seams, one per kind of server. They never
//!   import each other.
//! - [`link`]: what every seam needs to stay connected. [`fault`]: where it can be made to fail.
//! - [`intake`]: one request, from admission to the broker's confirm; the relay and the sweep.
//! - [`worker`]: deliveries become rows.
//! - [`control`]: what an operator does to a sale. [`audit`]: do the books balance?
//! - [`repair`]: what puts the books right again; rebuilding a gate.
//! - [`replay`]: what was accepted gets its row, after an outage.
//! - [`front`]: HTTP. [`drill`]: a crowd of buyers. [`dev`]: private servers as children.
//! - [`chaos`]: the stack under attack, judged by the drill. [`bench`]: figures beside the servers' own.
//! - [`process`]: configuration in, running process out.

// The futures of whole commands nest deeper than the compiler's usual 128 types; the optimiser is
// the first to notice, so only a release build would fail.
#![recursion_limit = "256"]

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
pub mod worker;
