//! Redis announces freed names to those who wait for them. A missed announcement costs only time, because waiters also look
//! by themselves.

use super::core::Core;
use crate::link::Listener;

impl Listener for Core {
    const WHAT: &'static str = "freed leases";

    fn channels(&self) -> Vec<String> {
        self.waiters.scopes().iter().map(|scope| self.wire.leases(scope)).collect()
    }

    fn hear(&self, channel: &str, names: &str) {
        let Some(scope) = self.wire.scope(channel) else { return };
        for name in names.split(' ') {
            self.waiters.wake(scope, name);
        }
    }

    fn catch_up(&self, channel: &str) {
        if let Some(scope) = self.wire.scope(channel) {
            self.waiters.wake_scope(scope);
        }
    }
}
