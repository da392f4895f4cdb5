//! A crowd that buys, reads, pays and cancels all the time, some hundred requests a second, whatever happens to the
//! servers. Every answer is judged when it arrives, by [`History::judge`]: an order that was accepted is never missing,
//! no order goes back to an earlier state, and none ends in another way than its buyer asked for.

mod buyer;
mod history;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbuster::domain::{OrderId, OrderStatus, Sale};
use doorbuster::front::Signer;
use doorbuster::process::Running;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::until;
pub use buyer::PAYMENT_SECRETS;
pub use history::History;
use history::Plan;

/// Buyers at a time. Each sends a request every [`PACE`], so that all together send about 300 a second.
const BUYERS: u32 = 32;
const PACE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(120);

/// What the buyers share.
struct Scene {
    front: SocketAddr,
    tokens: Arc<Signer>,
    sale: Sale,
    began: Instant,
    stop: CancellationToken,
    next: AtomicU32,
    requests: AtomicU64,
    histories: Mutex<Vec<Arc<Mutex<History>>>>,
    /// The history of each order whose rules were broken.
    broken: Mutex<Vec<String>>,
    /// Held for reading while a request to buy, or to cancel, is under way.
    buying: Arc<RwLock<()>>,
    cancelling: Arc<RwLock<()>>,
    /// Counts up before the database loses commits and after, so it is odd meanwhile.
    losses: AtomicU64,
    /// Orders that were given up as lost: they may be missing.
    lost: Mutex<BTreeSet<OrderId>>,
}

/// What has been done since some moment.
#[derive(Debug, Default)]
pub struct Progress {
    /// Buyers who began after that moment and were answered `accepted`.
    pub accepted: usize,
    pub paid: usize,
    pub cancelled: usize,
    pub read: usize,
}

/// A running crowd. Its tasks end when it is dropped.
pub struct Crowd {
    scene: Arc<Scene>,
    tasks: JoinSet<()>,
}

impl Crowd {
    /// The front must know the payment provider of [`PAYMENT_SECRETS`].
    pub fn start(running: &Running, sale: &Sale) -> Self {
        let scene = Arc::new(Scene {
            front: running.buyers.expect("a front"),
            tokens: Arc::new(Signer::new(running.auth.clone())),
            sale: sale.clone(),
            began: Instant::now(),
            stop: CancellationToken::new(),
            next: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            histories: Mutex::default(),
            broken: Mutex::default(),
            buying: Arc::default(),
            cancelling: Arc::default(),
            losses: AtomicU64::new(0),
            lost: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..BUYERS {
            tasks.spawn(buyer::one_after_the_other(scene.clone()));
        }
        Self { scene, tasks }
    }

    fn histories(&self) -> Vec<History> {
        let all = self.scene.histories.lock().unwrap();
        all.iter().map(|history| history.lock().unwrap().clone()).collect()
    }

    pub fn since(&self, moment: Instant) -> Progress {
        let mut progress = Progress::default();
        let is_later = |at: Option<Instant>| usize::from(at.is_some_and(|at| at > moment));
        for history in self.histories() {
            progress.accepted += is_later(history.accepted.filter(|_| history.asked > moment));
            progress.read += is_later(history.read);
            match history.plan {
                Plan::Pays => progress.paid += is_later(history.answered),
                Plan::Cancels => progress.cancelled += is_later(history.answered),
                Plan::Keeps => {}
            }
        }
        progress
    }

    /// Waits until new buyers have bought and everything else has been done, too, so many times from now on.
    pub async fn goes_on(&self, times: usize) {
        let from = Instant::now();
        until("buyers buy, read, pay and cancel", LONG, async || {
            self.keeps_the_rules();
            let done = self.since(from);
            let enough = done.accepted >= times
                && done.read >= times
                && done.paid >= times / 4
                && done.cancelled >= times / 8;
            enough.then_some(())
        })
        .await;
    }

    /// Waits until new buyers have bought so many times from now on.
    pub async fn buys(&self, times: usize) {
        let from = Instant::now();
        until("new buyers buy", LONG, async || (self.since(from).accepted >= times).then_some(())).await;
    }

    /// How long after `fault` a buyer who came after it was answered `accepted`.
    pub fn sold_again(&self, fault: Instant) -> Duration {
        let later = self.histories().into_iter().filter(|history| history.asked > fault);
        let first = later.filter_map(|history| history.accepted).min();
        first.expect("a new buyer has bought").duration_since(fault)
    }

    /// The users whose payment or cancellation was answered 200.
    pub fn have_acted(&self) -> Vec<String> {
        let acted = self.histories().into_iter().filter(|history| history.answered.is_some());
        acted.map(|history| history.user).collect()
    }

    /// The orders that a buyer knows to be accepted.
    pub fn accepted(&self) -> BTreeSet<OrderId> {
        self.histories().into_iter().filter_map(|history| history.order).collect()
    }

    /// No request to buy is under way, and none begins, until the result is dropped.
    pub async fn pause_buying(&self) -> OwnedRwLockWriteGuard<()> {
        self.scene.buying.clone().write_owned().await
    }

    /// The same for requests to cancel.
    pub async fn pause_cancelling(&self) -> OwnedRwLockWriteGuard<()> {
        self.scene.cancelling.clone().write_owned().await
    }

    /// Has the database lose commits.
    pub async fn through_a_loss(&self, lose: impl Future<Output = ()>) {
        self.scene.losses.fetch_add(1, Ordering::SeqCst);
        lose.await;
        self.scene.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on these orders may be missing.
    pub fn give_up(&self, orders: &BTreeSet<OrderId>) {
        self.scene.lost.lock().unwrap().extend(orders);
    }

    /// Fails if an answer has broken a rule.
    pub fn keeps_the_rules(&self) {
        let broken = self.scene.broken.lock().unwrap();
        assert!(
            broken.is_empty(),
            "{} rules were broken:\n{}",
            broken.len(),
            broken[..broken.len().min(4)].join("\n")
        );
    }

    /// Sends no further request, and waits for the answers to those under way.
    pub async fn stop(&mut self) {
        self.scene.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a buyer does not panic");
        }
        let (requests, lasted) = (self.scene.requests.load(Ordering::Relaxed), self.scene.began.elapsed());
        let per_second = requests as f64 / lasted.as_secs_f64();
        let accepted = self.accepted().len();
        println!("a crowd of {requests} requests, {per_second:.0} a second, had {accepted} orders accepted");
        self.keeps_the_rules();
    }

    /// Every order that was accepted can be read in the state that its buyer has asked for last; those that were given
    /// up are missing, all of them. Returns how many are live, and how many more may be because their buyers got no
    /// answer. Call it after [`Crowd::stop`].
    pub async fn ended_well(&self) -> (u64, u64) {
        let all = self.scene.histories.lock().unwrap().clone();
        let ends = futures_util::stream::iter(all).map(|history| buyer::final_status(&self.scene, history));
        let ends: Vec<Option<OrderStatus>> = ends.buffer_unordered(16).collect().await;
        self.keeps_the_rules();
        let live = ends.iter().flatten().filter(|status| status.is_live()).count() as u64;
        let unknown = self.histories().iter().filter(|history| history.may_have_another()).count();
        (live, unknown as u64)
    }
}
