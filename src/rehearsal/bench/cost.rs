//! CPU per order, by process.

/// One line with the microseconds of CPU per order, in total and for each process.
pub(super) fn per_order(before: &[(String, f64)], after: &[(String, f64)], orders: u64) -> String {
    let each = before
        .iter()
        .zip(after)
        .map(|((name, before), (_, after))| (name, (after - before) * 1_000_000.0 / orders as f64));
    let each: Vec<_> = each.collect();
    let all: f64 = each.iter().map(|(_, micros)| micros).sum();
    let parts: Vec<String> = each.iter().map(|(name, micros)| format!("{name} {micros:.0}")).collect();
    format!("CPU per order: {all:.0} us: {}", parts.join(", "))
}
