//! The log: to standard error, because standard output belongs to what a command was asked for.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::config::Config;

/// Once per process.
pub fn start(config: &Config) {
    start_with(&config.log.format, &config.log.level);
}

pub fn start_with(format: &str, level: &str) {
    let terminal = std::io::stderr().is_terminal();
    // lapin reports each broken connection itself, several times, and PostgreSQL each table that
    // is there already; what matters of both is said here once.
    let quiet = [("lapin", "off"), ("sqlx", "warn")]
        .iter()
        .filter(|(library, _)| !level.contains(library))
        .fold(level.to_owned(), |filter, (library, to)| format!("{filter},{library}={to}"));
    let filter = EnvFilter::try_new(quiet).unwrap_or_else(|_| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_ansi(terminal);
    // A second start, in a test, keeps the first.
    let _ = match format {
        "json" => log.json().try_init(),
        "auto" if !terminal => log.json().try_init(),
        _ => log.with_target(false).try_init(),
    };
}
