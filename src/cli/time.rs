//! Points in time, as operators write them.

use crate::domain::Millis;

/// The text is not a point in time, absolute or relative to now.
#[derive(Debug, thiserror::Error)]
#[error("{0:?}: it must be a time such as 2030-05-01T12:00:00Z, or 90s, 15m, 2h, 3d ago")]
pub(super) struct NotATime(String);

/// Parses RFC 3339, or a time span before now.
pub(super) fn parse(text: &str) -> Result<Millis, NotATime> {
    let wrong = || NotATime(text.to_owned());
    let unit = match text.chars().last() {
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        _ => return text.parse().map_err(|_| wrong()),
    };
    let count: i64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    if !(0..=100_000).contains(&count) {
        return Err(wrong());
    }
    Ok(Millis(Millis::now().0 - count * unit))
}
