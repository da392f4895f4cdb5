//! The log. It goes to standard error, because standard output carries a command's result.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::config::Config;

/// The filter of the log that was started.
static FILTER: OnceLock<reload::Handle<EnvFilter, tracing_subscriber::Registry>> = OnceLock::new();

/// Starts the log as configured. A second call in the same process changes nothing.
pub fn start(config: &Config) {
    start_with(&config.log.format, &config.log.level);
}

/// The same with `text`, `json` or `auto`, and a level or filter.
pub fn start_with(format: &str, level: &str) {
    let terminal = std::io::stderr().is_terminal();
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let lines = match format {
        "json" => lines.json().boxed(),
        "auto" if !terminal => lines.json().boxed(),
        _ => lines.with_target(false).boxed(),
    };
    // Tests start several processes in one; the first log stays.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Has the log that was started show what this level or filter shows.
pub(super) fn change_level(level: &str) {
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(filter(level))
    {
        tracing::warn!(level, %error, "the log keeps its level");
    }
}

fn filter(level: &str) -> EnvFilter {
    // lapin logs each broken connection several times, and PostgreSQL each table that exists already. We log the
    // relevant events of both once.
    let quiet = [("lapin", "off"), ("sqlx", "warn")]
        .iter()
        .filter(|(library, _)| !level.contains(library))
        .fold(level.to_owned(), |filter, (library, to)| format!("{filter},{library}={to}"));
    EnvFilter::try_new(quiet).unwrap_or_else(|_| EnvFilter::default().add_directive(LevelFilter::INFO.into()))
}
