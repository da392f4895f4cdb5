//! The judge: decides from a case whether every promise of a sale was kept.
//!
//! A [`Case`] is all that an outsider can know: what each buyer asked and heard, what the nemesis and the operator did,
//! and what Redis and the database hold in the end. The judge reads the servers with its own few lines and uses nothing
//! of the product, so that a mistake of the product cannot hide itself. Each [`Rule`] is one sentence; [`RULES`] is the
//! list.

mod books;
mod call;
mod case;
mod facts;
mod free_units;
mod gate_books;
mod judgement;
mod read_books;
mod rule;
mod rules;
mod sql_books;
mod story;

pub use books::{BookError, Books};
pub(in crate::rehearsal) use call::now_ms;
pub use call::{Answer, Ask, Call, History};
pub use case::{Case, CaseError, Intent, OperatorAct, Outage, Sale, Webhook};
pub(in crate::rehearsal) use facts::some_of;
pub use judgement::{Judgement, judge};
pub use read_books::{Servers, read_books};
pub use rule::{Finding, Kind, Rule};
pub use rules::RULES;
