//! Processes as shown in `/proc`: their children, and the folder they belong to.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a killed leftover may take to disappear.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// The direct children of a process.
pub(super) fn children_of(pid: Pid) -> Vec<Pid> {
    let (pid, mut children) = (pid.as_raw_nonzero(), Vec::new());
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw));
    }
    children
}

/// Kills processes left running by a killed predecessor. The pid alone may belong to an unrelated process by now, so
/// the process must also belong to this folder.
pub(super) async fn end_leftover(home: &Path) {
    let Ok(text) = std::fs::read_to_string(home.join("pid")) else { return };
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return };
    if !belongs_to(pid, home) {
        return;
    }
    tracing::warn!(pid = text.trim(), folder = %home.display(), "killing a leftover server");
    let _ = kill_process(pid, Signal::KILL);
    wait_until_gone(&[pid], home, KILLED_WITHIN).await;
}

/// Returns when none of these processes belongs to the folder any more, or when `within` has passed.
pub(super) async fn wait_until_gone(pids: &[Pid], home: &Path, within: Duration) {
    let until = Instant::now() + within;
    while pids.iter().any(|pid| belongs_to(*pid, home)) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the process works in the folder, or has it in its environment or command line.
fn belongs_to(pid: Pid, home: &Path) -> bool {
    let entry = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let needle = home.as_os_str().as_encoded_bytes();
    let mentions = |file: &str| {
        std::fs::read(entry.join(file))
            .is_ok_and(|text| text.windows(needle.len()).any(|part| part == needle))
    };
    let works_there = std::fs::read_link(entry.join("cwd")).is_ok_and(|cwd| cwd.starts_with(home));
    works_there || mentions("environ") || mentions("cmdline")
}
