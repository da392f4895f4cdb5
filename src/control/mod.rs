//! An operator's acts: on a sale, in the database and the gate together, and on dead letters.
//!
//! Every act is recorded before it is done, with its operator, reason and key. Every act may be repeated: if a crash
//! interrupts it between the two stores, the repeat finishes it, or maintenance does. This module knows no HTTP and
//! no command line.

mod archive;
mod changes;
mod check;
mod dead_letters;
mod error;
mod lifecycle;
mod live_settings;
mod operator_acts;
mod record;
mod sales;
mod webhooks;

pub use check::{CLOCK_TOLERANCE, Check};
pub use dead_letters::{DeadLetterActs, DeadLetterEnd, DeadLetterError, DeadLetterJson};
pub use error::ControlError;
pub use live_settings::{
    InvalidSetting, KnownSetting, KnownSettings, SettingActs, SettingError, SettingStatus,
};
pub(crate) use operator_acts::recorded;
pub use sales::{Control, SaleStatus};
pub use webhooks::{EndpointStatus, WebhookActs, WebhookError};
