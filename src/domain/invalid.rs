//! Why a value from outside is refused.

/// Why a value is refused. Safe to show to the sender, because it does not repeat the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {rule}")]
pub struct Invalid {
    /// The intended kind of value, such as `a sale id`.
    pub what: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
}

/// Checks a short text for people: 1 to `most` characters, none of them a control character. `most` is 100 or 200.
pub fn check_text(what: &'static str, text: &str, most: usize) -> Result<(), Invalid> {
    if (1..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let rule = match most {
        100 => "1 to 100 characters, none of them a control character",
        _ => "1 to 200 characters, none of them a control character",
    };
    Err(Invalid { what, rule })
}
