//! Named failure points: places where a process can be made to die, to fail or to stall, so that
//! what must hold after each of them can be tried. `DOORBUSTER_FAULT=commit.after=abort` arms one;
//! it fires once in the life of the process.
//!
//! They exist in debug builds alone: a release build holds neither the code nor the names.

/// Reaches a failure point. `fault!("ack.before")` may die or stall here;
/// `fault!("commit.before", return Err(…))` may also fail, in the way that is given.
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

/// Every point: before and after each step that an order takes.
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

/// And those of what becomes of it afterwards, and of acts upon its sale.
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

/// And those of a rebuild of a gate.
pub const REBUILD_POINTS: [&str; 3] = ["rebuild.gathered", "rebuild.read", "rebuild.loaded"];

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Clone, Copy)]
    enum Action {
        /// As kill -9 would.
        Abort,
        Error,
        /// The whole process stands still, for longer than a lease lasts.
        Pause,
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
                _ => return None,
            };
            let known = [&super::POINTS[..], &super::CHANGE_POINTS[..], &super::REBUILD_POINTS[..]]
                .iter()
                .any(|points| points.contains(&point));
            known.then(|| (point.to_owned(), action))
        };
        ARMED.get_or_init(read).as_ref()
    }

    /// `true` where the point is to fail.
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
            Action::Pause => {
                // Waiting in here would not do: the other tasks would go on to renew the leases.
                let waker = std::process::Command::new("sh")
                    .args(["-c", &format!("{PAUSE} {}", std::process::id())])
                    .spawn();
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                // The signal goes to the process, and this thread may run on until another has taken it: it
                // stays at this point until it is woken.
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
