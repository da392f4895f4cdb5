//! The result of a command, on standard output. `--output`: for people, or for programs.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// Prints a line of the result. A reader that has enough, such as `head`, must neither end a command half way nor change its
/// exit code.
///
/// # Panics
/// If the line cannot be written for another reason, such as a full disk.
pub(super) fn say(line: Arguments<'_>) {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => panic!("the result cannot be printed: {error}"),
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Output {
    /// text for people, json for programs.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

impl Output {
    pub(super) fn is_json(&self) -> bool {
        self.output == "json"
    }
}
