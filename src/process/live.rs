//! The settings that an operator may change while processes run: each process reads them once a second and follows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::log;
use crate::front::LiveFront;
use crate::store::{LiveSetting, Store};
use crate::worker::WorkerPace;

const EVERY: Duration = Duration::from_secs(1);

/// In what way a process does less than it could, because an operator or its own bound wants it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    ReadOnly,
    SheddingReads,
    RefusingByMemory,
    PersistencePaused,
}

impl Mode {
    const ALL: [Self; 4] =
        [Self::ReadOnly, Self::SheddingReads, Self::RefusingByMemory, Self::PersistencePaused];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::SheddingReads => "shedding_reads",
            Self::RefusingByMemory => "refusing_by_memory",
            Self::PersistencePaused => "persistence_paused",
        }
    }
}

/// What the tasks of a process see of the settings.
pub(super) struct Live {
    pub(super) front: Arc<LiveFront>,
    pub(super) pace: watch::Receiver<WorkerPace>,
    pub(super) modes: watch::Receiver<Vec<Mode>>,
}

/// Follows the settings. At first they are those of the configuration.
pub(super) struct Follower {
    config: Config,
    store: Store,
    /// Whether the process is a front, and whether it is a worker.
    is_front: bool,
    is_worker: bool,
    front: Arc<LiveFront>,
    pace: watch::Sender<WorkerPace>,
    modes: watch::Sender<Vec<Mode>>,
}

impl Follower {
    pub(super) fn new(config: &Config, store: Store, (is_front, is_worker): (bool, bool)) -> (Self, Live) {
        let front = Arc::new(LiveFront::new(&config.live_front()));
        let (pace, following) = watch::channel(config.pace());
        let (modes, shown) = watch::channel(Vec::new());
        let live = Live { front: front.clone(), pace: following, modes: shown };
        (Self { config: config.clone(), store, is_front, is_worker, front, pace, modes }, live)
    }

    /// Runs until `stop`. While the database does not answer, the values that were read last stay.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut last: Option<Vec<LiveSetting>> = None;
        let mut config = self.config.clone();
        loop {
            match self.store.live_settings().await {
                Ok(set) if last.as_ref() == Some(&set) => {}
                Ok(set) => {
                    config = self.follow(&config, &set, last.is_some());
                    last = Some(set);
                }
                Err(error) => tracing::debug!(%error, "the live settings cannot be read; the last ones stay"),
            }
            // While the database does not answer, nothing changes there.
            if let Ok(has_endpoints) = self.store.has_endpoints().await {
                self.store.announce_to_webhooks(has_endpoints);
            }
            self.show_modes(&config);
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Follows what is set now, and returns the configuration with it.
    fn follow(&self, before: &Config, set: &[LiveSetting], is_later: bool) -> Config {
        let (config, refused) = self.config.with_all_live(set);
        for why in refused {
            tracing::warn!(%why, "a live setting is ignored");
        }
        if config.log.level != before.log.level {
            log::change_level(&config.log.level);
        }
        if is_later || !set.is_empty() {
            let set: Vec<String> = set.iter().map(|one| format!("{}={:?}", one.name, one.value)).collect();
            tracing::info!(set = set.join(" "), "live settings changed");
        }
        self.front.change(&config.live_front());
        replace(&self.pace, config.pace());
        config
    }

    fn show_modes(&self, config: &Config) {
        let bound = config.front.refuse_above_mb;
        let is_full = self.is_front && bound > 0 && resident_mb().is_some_and(|used| used > bound);
        self.front.set_full(is_full);
        let is_in = |mode: &Mode| match mode {
            Mode::ReadOnly => self.is_front && config.front.read_only,
            Mode::SheddingReads => self.is_front && config.front.shed_reads_percent > 0,
            Mode::RefusingByMemory => is_full,
            Mode::PersistencePaused => self.is_worker && !config.worker.persist,
        };
        for mode in Mode::ALL {
            metrics::gauge!("doorbuster_degraded_mode", "mode" => mode.name())
                .set(f64::from(u8::from(is_in(&mode))));
        }
        let modes: Vec<Mode> = Mode::ALL.into_iter().filter(is_in).collect();
        let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
        if replace(&self.modes, modes) {
            tracing::warn!(modes = names.join(", "), "degraded modes changed");
        }
    }
}

/// Wakes those who follow only if the value is another one. Returns whether it is.
fn replace<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|before| {
        let is_other = *before != value;
        *before = value;
        is_other
    })
}

/// The memory that this process has, in megabytes. `None` where the system does not tell.
fn resident_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes / 1024)
}
