//! The task that owns the confirm channel: it connects, publishes, and reconnects, until all handles are gone.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::ConfirmSelectOptions;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::job::Job;
use super::session::Session;
use crate::link::Backoff;
use crate::queue::link::{Link, within};
use crate::queue::topology::Depths;
use crate::queue::{QueueError, QueueSettings};

/// A deleted queue is declared again after this time. Until then published orders are in the order log, or in
/// `P.unrouted` if the log is gone too, and the outbox publishes them again.
const DECLARE_EVERY: Duration = Duration::from_secs(5);

/// A broker that confirms nothing for this long while a message waits for its confirm counts as unavailable for new
/// orders. A confirm takes milliseconds.
const SILENT: Duration = Duration::from_secs(1);

/// How often to check the link.
const PULSE: Duration = Duration::from_millis(200);

pub(super) struct Owner {
    settings: QueueSettings,
    inbox: mpsc::Receiver<Job>,
    up: watch::Sender<bool>,
    depths: watch::Sender<Option<Depths>>,
    last_error: String,
}

impl Owner {
    pub(super) fn new(
        settings: QueueSettings,
        inbox: mpsc::Receiver<Job>,
        up: watch::Sender<bool>,
        depths: watch::Sender<Option<Depths>>,
    ) -> Self {
        Self { settings, inbox, up, depths, last_error: String::new() }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                None => return,
                Some(Ok(link)) => {
                    tracing::info!("publisher connected to the broker");
                    backoff.reset();
                    self.last_error.clear();
                    self.depths.send_replace(Some(link.depths));
                    self.up.send_replace(true);
                    let ended = self.serve(&link).await;
                    self.up.send_replace(false);
                    link.close().await;
                    match ended {
                        Ok(()) => return,
                        Err(error) => tracing::warn!(%error, "publisher lost the broker"),
                    }
                }
                Some(Err(error)) => self.log_once(&error),
            }
            if !self.refuse_during(tokio::time::sleep(backoff.delay())).await {
                return;
            }
        }
    }

    /// Logs one line per kind of error, not one per attempt.
    fn log_once(&mut self, error: &QueueError) {
        let error = error.to_string();
        if error != self.last_error {
            tracing::warn!(%error, "publisher cannot reach the broker, will keep trying");
            self.last_error = error;
        }
    }

    /// Connects once, refusing jobs meanwhile. `None` when all handles are gone.
    async fn connect(&mut self) -> Option<Result<Link, QueueError>> {
        let mut opening = Link::opening(&self.settings, "publisher", |channel| async move {
            Ok(channel.confirm_select(ConfirmSelectOptions::default()).await?)
        });
        loop {
            tokio::select! {
                opened = opening.done() => return Some(opened.map(|(link, ())| link)),
                job = self.inbox.recv() => job?.refuse(),
            }
        }
    }

    /// Refuses jobs until `until` ends. `false` when all handles are gone.
    async fn refuse_during(&mut self, until: impl Future<Output = ()>) -> bool {
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return true,
                job = self.inbox.recv() => match job {
                    Some(job) => job.refuse(),
                    None => return false,
                },
            }
        }
    }

    /// Publishes until all handles are gone, which is `Ok`, or until the link is unusable. Jobs without an answer by
    /// then are dropped, and their callers get `Unconfirmed`.
    async fn serve(&mut self, link: &Link) -> Result<(), QueueError> {
        let mut session = Session::new(link, &self.settings);
        let mut pulse = tokio::time::interval(PULSE);
        let mut declared = Instant::now();
        let mut open = true;
        loop {
            if !open && session.unconfirmed.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some(answered) = session.unconfirmed.next() => session.confirm(answered).await?,
                job = self.inbox.recv(), if open && session.unconfirmed.len() < self.settings.window => {
                    match job {
                        Some(job) => session.publish(job).await?,
                        None => open = false,
                    }
                }
                _ = pulse.tick() => self.check(link, session.waits_since, &mut declared).await?,
            }
        }
    }

    /// Declares the topology every [`DECLARE_EVERY`], and reports whether new orders can be published.
    async fn check(
        &self,
        link: &Link,
        waits_since: Option<Instant>,
        declared: &mut Instant,
    ) -> Result<(), QueueError> {
        if !link.is_up() {
            return Err(QueueError("the connection is closed".into()));
        }
        // Nothing is written to a blocked connection, so declaring would only time out.
        if declared.elapsed() > DECLARE_EVERY && !link.is_blocked() {
            *declared = Instant::now();
            let declaring = within(self.settings.timeout, link.declare(&self.settings));
            let depths = self.unless_silent(declaring).await?;
            self.depths.send_replace(Some(depths));
        }
        // A blocked broker counts as unavailable although the connection lives. So does a silent one, long
        // before it counts as lost, because no new order should wait for it.
        let silent = waits_since.is_some_and(|since| since.elapsed() > SILENT);
        let ready = !link.is_blocked() && !silent;
        self.up.send_if_modified(|up| std::mem::replace(up, ready) != ready);
        Ok(())
    }

    /// Waits for the broker's reply. While it takes long, the broker counts as unavailable for new orders.
    async fn unless_silent<T>(&self, reply: impl Future<Output = T>) -> T {
        tokio::pin!(reply);
        match tokio::time::timeout(SILENT, &mut reply).await {
            Ok(reply) => reply,
            Err(_) => {
                self.up.send_replace(false);
                reply.await
            }
        }
    }
}
