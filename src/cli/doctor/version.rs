//! Whether a version is recent enough.

/// Compares the leading numbers: `7.0.15` is at least `7.0`. A version without numbers passes.
pub(super) fn is_at_least(version: &str, least: &[u32]) -> bool {
    let numbers: Vec<u32> = version
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok())
        .take(least.len())
        .collect();
    numbers.is_empty() || numbers.as_slice() >= least
}

#[cfg(test)]
mod tests {
    use super::is_at_least;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_at_least("7.0.15", &[7, 0]) && is_at_least("10.1", &[7, 0]));
        assert!(is_at_least("3.10.8", &[3, 10]) && !is_at_least("3.9.29", &[3, 10]));
        assert!(is_at_least("4.0-rc.1", &[3, 10]) && is_at_least("unstable", &[7, 0]));
    }
}
