//! Named failure points for tests: places where a process can be made to die, fail or stall.
//! `DOORBUSTER_FAULT=commit.after=abort` arms one of them; it fires once in the lifetime of the process.
//!
//! They exist only in debug builds: a release build has no code for them.

/// Reaches a failure point. At `fault!("ack.before")` the process may die or stall; at
/// `fault!("commit.before", return Err(…))` it may also fail in the given way. A release build has none of it, so a
/// name that only a failure point uses is written with its path: an import would be unused there.
macro_rules! fault {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        {
            let _ = $crate::fault::reach($name).await;
        }
    };
    ($name:literal, $($fail:tt)+) => {
        #[cfg(debug_assertions)]
        if $crate::fault::reach($name).await {
            $($fail)+;
        }
    };
}
pub(crate) use fault;

/// The points before and after each step of an order, from admission to settlement.
pub const POINTS: [&str; 24] = [
    "script.before",
    "script.after",
    "answer.before",
    "answer.after",
    "publish.before",
    "publish.after",
    "confirm.before",
    "confirm.after",
    "delivery.before",
    "delivery.after",
    "lease.before",
    "lease.after",
    "begin.before",
    "begin.after",
    "insert.before",
    "insert.after",
    "commit.before",
    "commit.after",
    "ack.before",
    "ack.after",
    "release.before",
    "release.after",
    "settle.before",
    "settle.after",
];

/// The points of later changes to an order, and of acts on its sale.
pub const CHANGE_POINTS: [&str; 10] = [
    "paid.after",
    "end.before",
    "end.after",
    "cancel.after",
    "expire.before",
    "return.before",
    "return.after",
    "restock.begun",
    "change.begun",
    "act.told",
];

/// The points at which a process may only stall.
pub const STALL_POINTS: [&str; 1] = ["ack.during"];

/// The points of a gate's rebuild.
pub const REBUILD_POINTS: [&str; 4] =
    ["rebuild.gathered", "rebuild.read", "rebuild.staged", "rebuild.loaded"];

/// The points of a replay.
pub const REPLAY_POINTS: [&str; 1] = ["line.before"];

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Clone, Copy)]
    enum Action {
        /// Dies as if by `kill -9`.
        Abort,
        /// Fails in the way that the caller gives.
        Error,
        /// Stops the whole process for longer than a lease lasts.
        Pause,
        /// Never goes on from here. The rest of the process does.
        Hang,
    }

    const PAUSE: &str = "sleep 5.5; kill -CONT";

    fn armed() -> Option<&'static (String, Action)> {
        static ARMED: OnceLock<Option<(String, Action)>> = OnceLock::new();
        let read = || {
            let text = std::env::var("DOORBUSTER_FAULT").ok()?;
            let (point, action) = text.split_once('=')?;
            let action = match action {
                "abort" => Action::Abort,
                "error" => Action::Error,
                "pause" => Action::Pause,
                "hang" => Action::Hang,
                _ => return None,
            };
            let known = [
                &super::POINTS[..],
                &super::CHANGE_POINTS[..],
                &super::REBUILD_POINTS[..],
                &super::STALL_POINTS[..],
                &super::REPLAY_POINTS[..],
            ]
            .iter()
            .any(|points| points.contains(&point));
            known.then(|| (point.to_owned(), action))
        };
        ARMED.get_or_init(read).as_ref()
    }

    /// Acts if the point is armed and has not fired. Returns whether the caller must fail.
    pub async fn reach(point: &'static str) -> bool {
        static FIRED: AtomicBool = AtomicBool::new(false);
        let Some((_, action)) = armed().filter(|(armed, _)| armed == point) else { return false };
        if FIRED.swap(true, Ordering::SeqCst) {
            return false;
        }
        tracing::warn!(point, "failure point reached");
        match action {
            Action::Abort => {
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                std::future::pending().await
            }
            Action::Error => true,
            Action::Hang => std::future::pending().await,
            Action::Pause => {
                // A sleep would not do: other tasks would keep renewing the leases.
                let waker = std::process::Command::new("sh")
                    .args(["-c", &format!("{PAUSE} {}", std::process::id())])
                    .spawn();
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                // The signal stops the process, but this thread may keep running until another thread receives it, so
                // it waits here until the process is resumed.
                if let Ok(mut waker) = waker {
                    let _ = waker.wait();
                }
                false
            }
        }
    }
}

#[cfg(debug_assertions)]
pub use armed::reach;
