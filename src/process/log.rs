//! The log. It goes to standard error, because standard output carries a command's result.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::config::Config;

/// Starts the log as configured. A second call in the same process changes nothing.
pub fn start(config: &Config) {
    start_with(&config.log.format, &config.log.level);
}

/// The same with `text`, `json` or `auto`, and a level or filter.
pub fn start_with(format: &str, level: &str) {
    let terminal = std::io::stderr().is_terminal();
    // lapin logs each broken connection several times, and PostgreSQL each table that exists already. We log the
    // relevant events of both once.
    let quiet = [("lapin", "off"), ("sqlx", "warn")]
        .iter()
        .filter(|(library, _)| !level.contains(library))
        .fold(level.to_owned(), |filter, (library, to)| format!("{filter},{library}={to}"));
    let filter = EnvFilter::try_new(quiet).unwrap_or_else(|_| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_ansi(terminal);
    // Tests start several processes in one; the first log stays.
    let _ = match format {
        "json" => log.json().try_init(),
        "auto" if !terminal => log.json().try_init(),
        _ => log.with_target(false).try_init(),
    };
}
