//! Memory and CPU of processes, read from `/proc`, and so only on Linux.

use super::error::{BenchError, broken};

/// A process's resident memory in megabytes.
pub(super) fn resident_mb(pid: u32) -> Result<f64, BenchError> {
    memory_mb(pid, "VmRSS:")
}

/// The most resident memory that a process has had so far, in megabytes.
pub(super) fn peak_mb(pid: u32) -> Result<f64, BenchError> {
    memory_mb(pid, "VmHWM:")
}

fn memory_mb(pid: u32, name: &str) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|_| broken(format!("{path} cannot be read")))?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = kilobytes.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes / 1_000.0).ok_or_else(|| broken(format!("{path} has no {name}")))
}

/// Seconds of CPU that a process has used, user and system, including children that have ended.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let unreadable = || BenchError::Broken(format!("{path} cannot be read; this works on Linux only"));
    let text = std::fs::read_to_string(&path).map_err(|_| unreadable())?;
    // The process name may contain spaces and brackets; only numbers follow its last bracket.
    let (_, numbers) = text.rsplit_once(") ").ok_or_else(unreadable)?;
    let ticks = |at: usize| numbers.split(' ').nth(at).and_then(|text| text.parse::<f64>().ok());
    let used: Option<Vec<f64>> = (11..15).map(ticks).collect();
    let used: f64 = used.ok_or_else(unreadable)?.into_iter().sum();
    Ok(used / rustix::param::clock_ticks_per_second() as f64)
}

/// The same, with `children` including those still running: PostgreSQL has one per connection.
pub(super) fn cpu_seconds_of_tree(pid: u32, children: bool) -> Result<f64, BenchError> {
    let mut seconds = cpu_seconds(pid)?;
    if children {
        let tasks = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in tasks.split_whitespace().filter_map(|child| child.parse().ok()) {
            seconds += cpu_seconds_of_tree(child, true).unwrap_or(0.0);
        }
    }
    Ok(seconds)
}
