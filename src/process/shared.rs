//! What the tasks of one process share.

use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::live::Live;
use super::parts::Parts;
use crate::control::Control;
use crate::front::{AuthSettings, KeyRing};
use crate::orders::Orders;
use crate::queue::{DeadLetters, OrderLog, Publisher};

/// Acts on sales that may be done at once in the database: those of operators, and those of maintenance.
const ACTS: usize = 4;

/// Handles that are cheap to clone, made once so that a process has one connection per purpose.
pub(super) struct Shared<'a> {
    pub(super) config: &'a Config,
    pub(super) parts: &'a Parts,
    pub(super) dead_letters: DeadLetters,
    pub(super) control: Control,
    pub(super) orders: Orders,
    pub(super) auth: AuthSettings,
    /// The keys that verify tokens.
    pub(super) keys: KeyRing,
    /// The settings that may change.
    pub(super) live: Live,
    /// Cancelled when the process should stop.
    pub(super) stop: CancellationToken,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        config: &'a Config,
        parts: &'a Parts,
        dead_letters: DeadLetters,
        auth: AuthSettings,
        (live, stop): (Live, CancellationToken),
    ) -> Self {
        let publisher = parts.publisher.clone().unwrap_or_else(|| Publisher::open(config.queue()));
        let log = OrderLog::with(config.queue(), publisher);
        Self {
            config,
            parts,
            dead_letters,
            control: Control::new(parts.gate.clone(), parts.store.ahead_of_buyers(ACTS)),
            orders: Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone()).logged_to(log),
            keys: KeyRing::new(&auth),
            auth,
            live,
            stop,
        }
    }
}
