//! The result of a command, on standard output. `--output`: for people, or for programs.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write as _};

/// Prints a line of the result. See [`print`].
pub(super) fn say(line: Arguments<'_>) {
    print(&format_args!("{line}\n"));
}

/// Prints the result. A reader that has enough, such as `head`, must neither end a command half way nor change its
/// exit code.
///
/// # Panics
/// If it cannot be written for another reason, such as a full disk.
pub(super) fn print(result: &impl Display) {
    let mut out = std::io::stdout().lock();
    match write!(out, "{result}").and_then(|()| out.flush()) {
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
