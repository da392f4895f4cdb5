//! A wrong clock for one process: libfaketime, which is loaded before it.

use std::path::{Path, PathBuf};

const PRELOAD: &str = "LD_PRELOAD";

/// The clock of one process, as a file that the process reads again each second.
#[derive(Clone)]
pub struct FakeClock {
    preload: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// A clock that goes right until it is set, kept in `file`. `None` if libfaketime is not installed.
    pub fn in_file(file: &Path) -> Option<Self> {
        let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
        let preload = folders
            .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
            .find(|file| file.is_file())?;
        let clock = Self { preload, file: file.to_owned() };
        clock.set(0).ok()?;
        Some(clock)
    }

    /// Sets it ahead of the host's clock by so many seconds, negative if behind.
    pub fn set(&self, ahead_s: i64) -> std::io::Result<()> {
        // In one step: a process must not read half of it.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{ahead_s:+}\n"))?;
        std::fs::rename(new, &self.file)
    }

    /// The same for a program that uses jemalloc, which asks for the time before libfaketime is ready. glibc's own allocator
    /// takes its place.
    pub(super) fn env_without_jemalloc(&self) -> Vec<(&'static str, String)> {
        let preload = format!("libc_malloc_debug.so.0:{}", self.preload.display());
        let env = self.env().into_iter();
        env.map(|(name, value)| (name, if name == PRELOAD { preload.clone() } else { value })).collect()
    }

    /// What the process needs in its environment. Its monotonic clock stays right.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            (PRELOAD, self.preload.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}
