//! Events of payment providers, and their effect on orders.

mod event;
mod pay;
mod read;
mod refund;
mod together;
mod waiting;

pub use event::{Applied, Payment};
pub use pay::Applying;
pub use together::NewPayment;
