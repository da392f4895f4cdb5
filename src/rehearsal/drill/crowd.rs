//! The crowd: many clicks over a limited number of connections, each with its final answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::click::{ClickResult, Clicker};
use super::follow_up::Bought;
use super::plan::{Click, Plan};
use super::progress::Progress;
use super::target::Target;
use crate::domain::{SaleId, UserId};

/// Clicks that are due and not yet taken by a connection.
struct DueClicks {
    clicks: Mutex<VecDeque<(Click, Instant)>>,
    /// One permit per click; closed after the last one.
    permits: Semaphore,
}

impl DueClicks {
    fn new() -> Self {
        Self { clicks: Mutex::default(), permits: Semaphore::new(0) }
    }

    fn push(&self, click: Click, due: Instant) {
        self.lock().push_back((click, due));
        self.permits.add_permits(1);
    }

    /// The next click; `None` after the last one.
    async fn next(&self) -> Option<(Click, Instant)> {
        loop {
            self.permits.acquire().await.ok()?.forget();
            let next = self.lock().pop_front();
            if next.is_some() {
                return next;
            }
        }
    }

    /// Returns when every click has been taken; from then on, [`DueClicks::next`] returns `None`.
    async fn close(&self) {
        while !self.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.permits.close();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Click, Instant)>> {
        self.clicks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Sends every click at its time, and returns their final answers. Each accepted order goes to `bought` immediately.
pub(super) async fn send(
    target: &Target,
    plan: &Plan,
    sale: &SaleId,
    progress: &Progress,
    bought: Option<mpsc::UnboundedSender<Bought>>,
) -> Vec<ClickResult> {
    let clicks = plan.clicks();
    progress.begin(clicks.len(), "clicks answered");
    let lane = Lane {
        due: Arc::new(DueClicks::new()),
        buyers: Arc::new((0..plan.buyers).filter_map(|nth| target.buyer(nth)).collect()),
        progress: progress.clone(),
        bought,
        plan: Arc::new(plan.clone()),
    };
    let lanes: Vec<_> = (0..plan.connections.min(clicks.len()))
        .map(|_| tokio::spawn(lane.clone().run(Clicker::new(target, sale, plan))))
        .collect();
    let start = Instant::now();
    for click in clicks {
        let at = start + click.at;
        tokio::time::sleep_until(at).await;
        lane.due.push(click, at);
    }
    lane.due.close().await;
    let mut results = Vec::new();
    for running in lanes {
        results.extend(running.await.unwrap_or_default());
    }
    progress.end();
    results
}

/// State shared by all connections.
#[derive(Clone)]
struct Lane {
    due: Arc<DueClicks>,
    buyers: Arc<Vec<(UserId, String)>>,
    progress: Progress,
    bought: Option<mpsc::UnboundedSender<Bought>>,
    plan: Arc<Plan>,
}

impl Lane {
    /// Takes clicks until none is left.
    async fn run(self, mut clicker: Clicker) -> Vec<ClickResult> {
        let mut results = Vec::new();
        while let Some((click, due)) = self.due.next().await {
            let (user, bearer) = &self.buyers[click.buyer as usize];
            let wanted = self.plan.wanted(click.buyer, click.key);
            let result = clicker.click((user, bearer), click.key, wanted, due).await;
            // A buyer who clicks twice with the first key follows up twice: their provider sends the event twice.
            if let (Some(bought), Some(order), 0, true) =
                (&self.bought, result.order, click.key, result.has_order())
            {
                let _ = bought.send(Bought { order, user: user.clone(), bearer: bearer.clone() });
            }
            results.push(result);
            self.progress.step();
        }
        results
    }
}
