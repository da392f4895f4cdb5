//! What all problems of one code and reason have in common. Each thread prepares it once, because most answers of a rush
//! are one of a few problems.

use std::cell::RefCell;

use metrics::Counter;
use serde::Serialize;

use super::codes::Code;

thread_local! {
    static KNOWN: RefCell<Vec<Known>> = RefCell::default();
}

struct Known {
    code: &'static str,
    reason: &'static str,
    /// To have the recorder look it up costs more than the list.
    counter: Counter,
    /// The members of the body that are always the same, as a JSON object.
    common: Vec<u8>,
}

#[derive(Serialize)]
struct Common<'a> {
    r#type: std::fmt::Arguments<'a>,
    title: &'a str,
    status: u16,
    code: &'a str,
    retryable: bool,
}

impl Known {
    fn new(code: &Code, reason: &'static str) -> Self {
        let Code { status, name: code, title, retryable } = *code;
        let common =
            Common { r#type: format_args!("urn:doorbuster:problem:{code}"), title, status, code, retryable };
        Self {
            code,
            reason,
            counter: metrics::counter!("doorbuster_front_problems_total", "code" => code, "reason" => reason),
            // Serializing text and numbers into memory cannot fail.
            common: serde_json::to_vec(&common).unwrap_or_default(),
        }
    }
}

/// Counts a problem and writes its body: the members that it shares with others, and its own, which are an object.
pub(super) fn count_and_write(code: &Code, reason: &'static str, own: &impl Serialize, into: &mut Vec<u8>) {
    KNOWN.with_borrow_mut(|all| {
        let known = all.iter().position(|known| (known.code, known.reason) == (code.name, reason));
        let known = known.unwrap_or_else(|| {
            all.push(Known::new(code, reason));
            all.len() - 1
        });
        all[known].counter.increment(1);
        into.extend_from_slice(&all[known].common);
    });
    // The two objects become one.
    if let Some(end) = into.pop() {
        let begins = into.len();
        debug_assert_eq!(end, b'}');
        let _ = serde_json::to_writer(&mut *into, own);
        if let Some(brace) = into.get_mut(begins) {
            *brace = b',';
        }
    }
}
