//! Sales, their items, and operators' acts on them.

mod acts;
mod create;
mod end_act;
mod erase;
mod erase_words;
mod purge;
mod read;
mod read_acts;
mod restock;
mod terms;
mod witness;

pub use acts::{BegunAct, NotBegun, Restock, SaleAct};
pub use erase::{Erased, Erasure};
pub use purge::Purged;
pub use read::{ItemRow, SaleNumber, SaleRow};
pub(in crate::store) use read::{read_sale, read_sale_by, terms_of};
pub(in crate::store) use witness::record_number;
