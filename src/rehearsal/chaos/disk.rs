//! Faults of the disk. A full one, for one server: the kernel refuses whatever its processes write to files. A busy one,
//! for all of them: another program writes and syncs.

use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::missed::Missed;
use super::stack::Stack;
use crate::rehearsal::servers::Kind;

/// The server can write nothing for so long. Then there is room again, and it is restarted: it may have ended by itself.
pub(super) async fn fill(stack: &Stack, kind: Kind, lasts: Duration) -> Result<(), Missed> {
    let server = stack.pid(kind).await?;
    for pid in descendants(server)? {
        // One that has ended meanwhile writes nothing either.
        let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(0), maximum: None });
    }
    tokio::time::sleep(lasts).await;
    stack.kill_server(kind).await
}

/// How many threads write, how much at once, and how large their files become.
const WRITERS: usize = 2;
const AT_ONCE: usize = 4 << 20;
const AT_MOST: usize = 64 << 20;

/// Another program writes to the disk and syncs, for so long.
pub(super) async fn keep_busy(stack: &Stack, lasts: Duration) -> Result<(), Missed> {
    let until = Instant::now() + lasts;
    let writers: Vec<_> = (0..WRITERS)
        .map(|nth| {
            let file = stack.home().join(format!("busy-disk-{nth}"));
            tokio::task::spawn_blocking(move || write_until(until, &file))
        })
        .collect();
    for writer in writers {
        writer.await.map_err(std::io::Error::other)??;
    }
    Ok(())
}

fn write_until(until: Instant, path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let bytes = vec![1; AT_ONCE];
    let mut length = 0;
    while Instant::now() < until {
        file.write_all(&bytes)?;
        file.sync_data()?;
        length += AT_ONCE;
        if length >= AT_MOST {
            file.rewind()?;
            length = 0;
        }
    }
    std::fs::remove_file(path)
}

/// The process and all that it has started. Those that it starts later inherit its limits.
fn descendants(of: Pid) -> std::io::Result<Vec<Pid>> {
    let mut parents: Vec<(i32, i32)> = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name, in parentheses, may contain anything.
        let after_name = stat.rsplit_once(')').map_or("", |(_, after)| after);
        if let Some(parent) = after_name.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut found: Vec<i32> = vec![of.as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    Ok(found.into_iter().filter_map(Pid::from_raw).collect())
}
