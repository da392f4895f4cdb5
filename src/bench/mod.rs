//! How fast is it, beside what the servers themselves can do? A rate is measured together with its
//! ceiling, turn by turn in the same run: machines differ and are shared, and a ratio says more. The
//! other figures have a limit that they must keep.

mod lease;
mod replay;
mod report;

pub use lease::run as lease;
pub use replay::run as replay;
pub use report::{Figure, Report, Wanted};

/// Why a benchmark could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Dev(#[from] crate::dev::DevError),
    #[error(transparent)]
    Lease(#[from] crate::lease::LeaseError),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("{0}")]
    Broken(String),
}

/// The middle one of some figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Of rounds of a figure and its ceiling, the one with the middle ratio.
fn middle_round(mut rounds: Vec<(f64, f64)>) -> (f64, f64) {
    let ratio = |round: &(f64, f64)| round.0 / round.1;
    rounds.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    rounds.get(rounds.len() / 2).copied().unwrap_or((f64::NAN, f64::NAN))
}

/// Seconds of CPU that a process has used: user and system. From `/proc`, so on Linux alone.
fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let unreadable = || BenchError::Broken(format!("{path} cannot be read; this is measured on Linux alone"));
    let text = std::fs::read_to_string(&path).map_err(|_| unreadable())?;
    // The name may hold blanks and brackets; behind the last bracket are numbers.
    let (_, numbers) = text.rsplit_once(") ").ok_or_else(unreadable)?;
    let ticks = |at: usize| numbers.split(' ').nth(at).and_then(|text| text.parse::<f64>().ok());
    let (Some(user), Some(system)) = (ticks(11), ticks(12)) else { return Err(unreadable()) };
    Ok((user + system) / rustix::param::clock_ticks_per_second() as f64)
}
