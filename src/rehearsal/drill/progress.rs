//! How far the drill is: a bar on a terminal, a JSON line every few seconds elsewhere.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const EVERY: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    /// Where there is no terminal: when the last line was written.
    lines: Option<Arc<Mutex<Instant>>>,
    quiet: bool,
}

impl Progress {
    /// On standard error, so that standard output holds the report alone.
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

    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), lines: None, quiet: true }
    }

    pub fn begin(&self, total: usize, what: &'static str) {
        if let Ok(style) = ProgressStyle::with_template("  {bar:32} {pos}/{len} {msg}  {per_sec}  {eta} left")
        {
            self.bar.set_style(style);
        }
        self.bar.set_length(total as u64);
        self.bar.set_message(what);
        // The rate counts from here, not from when the bar was made.
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
            eprintln!("{}", serde_json::json!({ "done": self.bar.position(), "of": self.bar.length() }));
        }
    }

    pub fn length(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// As many are done as this.
    pub fn reach(&self, done: u64) {
        self.bar.set_position(done);
        self.line();
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    pub fn say(&self, text: &str) {
        match self.lines {
            _ if self.quiet => {}
            None => self.bar.suspend(|| eprintln!("  {text}")),
            Some(_) => eprintln!("{}", serde_json::json!({ "says": text })),
        }
    }
}
