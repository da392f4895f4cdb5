//! Counts problems by code and reason.

use std::cell::RefCell;

use metrics::Counter;

thread_local! {
    /// The counters that this thread has used. To have the recorder look one up costs more.
    static USED: RefCell<Vec<(&'static str, &'static str, Counter)>> = RefCell::default();
}

/// Counts one problem.
pub(super) fn count(code: &'static str, reason: &'static str) {
    USED.with_borrow_mut(|used| {
        let at = used.iter().position(|used| (used.0, used.1) == (code, reason)).unwrap_or_else(|| {
            let counter =
                metrics::counter!("doorbuster_front_problems_total", "code" => code, "reason" => reason);
            used.push((code, reason, counter));
            used.len() - 1
        });
        used[at].2.increment(1);
    });
}
