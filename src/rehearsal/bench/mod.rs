//! How fast is it, beside what the servers themselves can do? A rate is measured together with its
//! ceiling, turn by turn in the same run: machines differ and are shared, and a ratio says more. The
//! other figures have a limit that they must keep.

mod bare;
mod bare_sql;
mod growth;
mod http;
mod lease;
mod load;
mod parts;
mod persist;
mod replay;
mod report;
mod speed;
mod world;

pub use bare::http as bare_http;
pub use lease::run as lease;
pub use replay::run as replay;
pub use report::{Figure, Report, Wanted};
pub use speed::{Part, run as speed};

/// Why a benchmark could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Servers(#[from] crate::rehearsal::servers::ServerError),
    #[error(transparent)]
    Lease(#[from] crate::lease::LeaseError),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("{0}")]
    Broken(String),
}

fn broken(error: impl std::fmt::Display) -> BenchError {
    BenchError::Broken(error.to_string())
}

/// Megabytes of memory that a process has resident. From `/proc`, so on Linux alone.
fn resident_mb(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|_| broken(format!("{path} cannot be read")))?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = kilobytes.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes / 1_000.0).ok_or_else(|| broken(format!("{path} tells no VmRSS")))
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

/// Seconds of CPU that a process has used, user and system, with those of its children that have ended. From `/proc`, so on Linux alone.
fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let unreadable = || BenchError::Broken(format!("{path} cannot be read; this is measured on Linux alone"));
    let text = std::fs::read_to_string(&path).map_err(|_| unreadable())?;
    // The name may hold blanks and brackets; behind the last bracket are numbers.
    let (_, numbers) = text.rsplit_once(") ").ok_or_else(unreadable)?;
    let ticks = |at: usize| numbers.split(' ').nth(at).and_then(|text| text.parse::<f64>().ok());
    let used: Option<Vec<f64>> = (11..15).map(ticks).collect();
    let used: f64 = used.ok_or_else(unreadable)?.into_iter().sum();
    Ok(used / rustix::param::clock_ticks_per_second() as f64)
}
