//! The stack under load while a seeded nemesis does its worst: kill -9 of everything, stopped
//! processes, a network that delays and loses, purged queues, a full Redis. At the end everything
//! heals, and the drill's verdict compares what each buyer was told with gate and database.
//!
//! The nemesis attacks the servers behind Doorbuster's back, so it speaks their protocols itself.
//! The same seed plans the same faults at the same times; what they hit is up to the machine.

mod nemesis;
mod proxy;
mod stack;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use nemesis::Inflicted;
pub use proxy::{Proxy, Weather};

use self::stack::Stack;
use crate::front::{AuthSettings, Tokens};
use crate::rehearsal::drill::{
    self, Arrival, Clicks, DrillError, FollowUp, Plan, Progress, Report, Steering, Target,
};
use crate::rehearsal::servers::{Kind, ServerError};
use crate::store::StoreError;

#[derive(Debug, Clone)]
pub struct ChaosPlan {
    pub seed: u64,
    pub faults: usize,
    /// Orders that are to be accepted: units on sale, wanted by a few more buyers.
    pub orders: i64,
    pub lasts: Duration,
    pub database: Kind,
    /// Do buyers pay and cancel, do orders expire, is the sale restocked?
    pub follow_up: bool,
    /// Pairs of `section.key=value` for the fronts and workers.
    pub settings: Vec<String>,
}

/// Longer than the outages of single servers, so that most who want to pay can; in a short drill shorter.
fn pay_within_s(lasts: Duration) -> u32 {
    u32::try_from(lasts.as_secs() / 4).unwrap_or(u32::MAX).clamp(4, 20)
}

/// How soon everything must have ended after the last server answers its protocol again.
pub const SETTLED_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    #[error(transparent)]
    Servers(#[from] ServerError),
    #[error(transparent)]
    Drill(#[from] DrillError),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    #[error("the fronts do not serve: {0}")]
    NotReady(String),
}

#[derive(Debug, Serialize)]
pub struct ChaosReport {
    pub seed: u64,
    pub database: &'static str,
    /// Seconds that buyers had to pay, where they paid.
    pub pay_within_s: Option<u32>,
    /// How many of each kind were inflicted.
    pub faults: BTreeMap<String, u64>,
    pub inflicted: u64,
    /// Faults that found their victim down already.
    pub missed: u64,
    /// Orders that buyers were told are taken.
    pub accepted: u64,
    /// Seconds until the last order had its row and the gate knew of it, after every server answered
    /// and the last buyer had been told.
    pub settled_s: f64,
    /// Processes that ended though nobody killed them: a fault of ours.
    pub ended_by_themselves: Vec<String>,
    pub timeline: Vec<Inflicted>,
    pub drill: Report,
}

impl ChaosReport {
    pub fn balances(&self) -> bool {
        self.drill.balances && self.ended_by_themselves.is_empty()
    }

    /// Did everything end, and soon enough?
    pub fn is_complete(&self) -> bool {
        // What nobody pays for ends with its deadline, and not before.
        let limit = SETTLED_WITHIN.as_secs_f64() + f64::from(self.pay_within_s.unwrap_or(0));
        self.drill.complete && self.settled_s <= limit
    }
}

/// Starts everything under `home`, and ends it. Traffic stays on 127.0.0.1.
pub async fn run(
    home: &Path,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<ChaosReport, ChaosError> {
    progress.say("starting the servers, two fronts and two workers");
    let stack = Stack::start(home, plan.database, &plan.settings).await?;
    let result = attack(&stack, plan, progress, stop).await;
    stack.stop().await;
    result
}

async fn attack(
    stack: &Stack,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<ChaosReport, ChaosError> {
    let tokens = Tokens::new(AuthSettings {
        secret: stack.secret().to_owned(),
        public_key: String::new(),
        issuer: "doorbuster".into(),
        audience: "doorbuster".into(),
        leeway: 2,
    });
    let payment_secret = stack.payment_secret().to_owned();
    let target = Target { buyers: stack.buyers(), operations: stack.operations(), tokens, payment_secret };
    drill::until_ready(&target, Duration::from_secs(60)).await.map_err(ChaosError::NotReady)?;
    // A few more want one than there are.
    let buyers = u32::try_from(plan.orders + plan.orders / 20).unwrap_or(u32::MAX);
    let crowd = Plan {
        name: "chaos",
        units: plan.orders,
        buyers,
        arrival: Arrival::PerSecond(f64::from(buyers) / plan.lasts.as_secs_f64()),
        connections: 512,
        clicks: Clicks::SomeTwice,
        repeat_for: Duration::from_secs(120),
        settle_within: Duration::from_secs(120),
        // Nobody buys again, so that whoever clicks with another key is told of his order for ever.
        follow_up: plan.follow_up.then_some(FollowUp {
            pay_within_s: pay_within_s(plan.lasts),
            rebuy: false,
            pay: 60,
            pay_late: 5,
            cancel: 15,
            repeat_for: Duration::from_secs(120),
        }),
        steering: plan.follow_up.then_some(Steering::Restocks { every: Duration::from_secs(3) }),
    };
    let faults = nemesis::plan(plan.seed, plan.faults, plan.lasts, plan.database);
    let mut timeline = Vec::new();
    let mut healed = Instant::now();
    let nemesis = async {
        let start = Instant::now();
        for (at, fault) in faults {
            tokio::time::sleep_until(start + at).await;
            let at = start.elapsed().as_secs_f64();
            tracing::info!(at, ?fault, "fault");
            let missed = nemesis::inflict(stack, fault).await.err();
            timeline.push((fault, Inflicted { at, fault: format!("{fault:?}"), missed }));
        }
        stack.all_answer().await;
        healed = Instant::now();
    };
    let ran = drill::run_during(&target, &crowd, progress, stop, nemesis).await?;
    let settled_s = ran.at_rest.duration_since(healed.max(ran.answered_at)).as_secs_f64();
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    for (fault, _) in timeline.iter().filter(|(_, done)| done.missed.is_none()) {
        *faults.entry(fault.kind()).or_default() += 1;
    }
    let inflicted = faults.values().sum();
    Ok(ChaosReport {
        seed: plan.seed,
        database: plan.database.name(),
        pay_within_s: plan.follow_up.then(|| pay_within_s(plan.lasts)),
        inflicted,
        missed: timeline.len() as u64 - inflicted,
        faults,
        accepted: ran.report.verdict.promised,
        settled_s,
        ended_by_themselves: stack.ended(),
        timeline: timeline.into_iter().map(|(_, done)| done).collect(),
        drill: ran.report,
    })
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(f, "  seed        {} on {}", self.seed, self.database)?;
        writeln!(f, "  faults      {} inflicted, {} missed", self.inflicted, self.missed)?;
        for line in faults.chunks(5) {
            writeln!(f, "              {}", line.join(" · "))?;
        }
        writeln!(
            f,
            "  settled     {:.1} s after every server answered and the last buyer was told",
            self.settled_s
        )?;
        for done in self.timeline.iter().filter(|done| done.missed.is_some()).take(10) {
            let why = done.missed.as_deref().unwrap_or_default();
            writeln!(f, "  missed      {} at {:.1} s: {why}", done.fault, done.at)?;
        }
        for ended in &self.ended_by_themselves {
            writeln!(f, "  wrong       {ended}")?;
        }
        if !self.balances() {
            for done in &self.timeline {
                writeln!(f, "  {:>9.1} s {}", done.at, done.fault)?;
            }
        }
        write!(f, "{}", self.drill)
    }
}
