//! Shows the progress of long work: a bar on a terminal, a JSON line every few seconds elsewhere.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The interval between JSON lines.
const EVERY: Duration = Duration::from_secs(3);

/// Reports progress on standard error. Clones share one bar.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    /// When the last JSON line was written; `None` on a terminal.
    lines: Option<Arc<Mutex<Instant>>>,
    quiet: bool,
}

impl Progress {
    /// Uses standard error, so that standard output carries only the report.
    pub fn on_stderr() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::new(0);
        bar.set_draw_target(if terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        });
        Self { bar, lines: (!terminal).then(|| Arc::new(Mutex::new(Instant::now()))), quiet: false }
    }

    /// Reports nothing.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), lines: None, quiet: true }
    }

    /// Starts counting from zero to `total`; `what` names what is counted. A total of zero means that it is not known.
    pub fn begin(&self, total: usize, what: &'static str) {
        self.length(total as u64);
        self.bar.set_message(what);
        // Otherwise the rate would count from the bar's creation.
        self.bar.reset();
    }

    pub(super) fn step(&self) {
        self.bar.inc(1);
        self.line();
    }

    fn line(&self) {
        let Some(lines) = &self.lines else { return };
        let mut last = lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.elapsed() >= EVERY {
            *last = Instant::now();
            let (done, of) = (self.bar.position(), self.bar.length());
            eprintln!("{}", serde_json::json!({ "done": done, "of": of, "what": self.bar.message() }));
        }
    }

    /// Changes the total.
    pub fn length(&self, total: u64) {
        let template = match total {
            0 => "  {spinner} {pos} {msg}  {per_sec}",
            _ => "  {bar:32} {pos}/{len} {msg}  {per_sec}  {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(total);
    }

    /// Sets how many are done.
    pub fn reach(&self, done: u64) {
        self.bar.set_position(done);
        self.line();
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line of text, next to the bar or as JSON.
    pub fn say(&self, text: &str) {
        match self.lines {
            _ if self.quiet => {}
            None => self.bar.suspend(|| eprintln!("  {text}")),
            Some(_) => eprintln!("{}", serde_json::json!({ "says": text })),
        }
    }
}
