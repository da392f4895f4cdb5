//! A chaos drill from the start of its stack to its report.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::ChaosError;
use super::evidence::{self, Nemesis};
use super::fault::{self, Fault};
use super::plan::ChaosPlan;
use super::report::{ChaosReport, Inflicted, SaleReport};
use super::stack::Stack;
use super::supervisor::supervise;
use super::{nemesis, operator};
use crate::front::{AuthSettings, Signer};
use crate::rehearsal::drill::{self, Followers, Progress, Target};
use crate::rehearsal::judge::{Case, History, Outage, judge, now_ms};

/// Starts everything under `home`, attacks it during a drill, and stops it. All traffic stays on 127.0.0.1. Returns the
/// case of each sale, in the order of the report, so that it can be kept.
pub async fn run(
    home: &Path,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(ChaosReport, Vec<Case>), ChaosError> {
    progress.say("starting the servers, two fronts and two workers");
    let stack = Stack::start(home, plan).await?;
    let result = async {
        let migrated = operator::migrate(&stack, plan.other.as_deref()).await;
        migrated.map_err(|missed| ChaosError::Migrate(missed.to_string()))?;
        if let Some(shop) = stack.shop() {
            let added = operator::add_endpoint(&stack, &shop.url()).await;
            added.map_err(|missed| ChaosError::Endpoint(missed.to_string()))?;
        }
        stack.start_processes()?;
        tokio::spawn(supervise(stack.clone()));
        attack(&stack, plan, progress, stop).await
    }
    .await;
    stack.stop().await;
    result
}

async fn attack(
    stack: &Stack,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(ChaosReport, Vec<Case>), ChaosError> {
    drill::until_ready(&target(stack), Duration::from_secs(60)).await?;
    let faults = fault::draw_all(plan);
    let mut attack =
        Attack { inflicted: Vec::new(), began_ms: now_ms(), healed_at: Instant::now(), healed_at_ms: 0 };
    let planned = plan.planned_sales();
    let healed = CancellationToken::new();
    let drills = planned.iter().enumerate().map(|(nth, planned)| {
        // One bar is enough; the first sale lasts longest.
        let progress = if nth == 0 { progress.clone() } else { Progress::hidden() };
        let healed = healed.clone();
        async move {
            let target = target(stack);
            tokio::time::sleep(planned.opens_after).await;
            let run = drill::run_during(&target, &planned.plan, &progress, stop, healed.cancelled()).await?;
            Ok::<_, ChaosError>((&planned.plan, target, run))
        }
    });
    let attacking = async {
        tokio::select! {
            () = attack.run(stack, faults) => healed.cancel(),
            why = stack.until_one_is_not_back() => return Err(ChaosError::NotBack(why)),
        }
        Ok(())
    };
    let (runs, ()) = tokio::try_join!(try_join_all(drills), attacking)?;
    progress.say("judging");
    let outages = attack.inflicted.iter().map(|(_, outage)| outage.clone()).collect();
    let nemesis = Nemesis { outages, healed_at_ms: attack.healed_at_ms };
    let (mut sales, mut cases) = (Vec::new(), Vec::new());
    for (crowd, target, run) in runs {
        let case = evidence::gather(stack, crowd, &target, nemesis.clone(), &run).await?;
        let quiet_since = attack.healed_at.max(run.answered_at);
        sales.push(SaleReport {
            settled_s: run.at_rest.duration_since(quiet_since).as_secs_f64(),
            drill: run.report,
            judgement: judge(&case),
        });
        cases.push(case);
    }
    Ok((attack.report(stack, plan, sales), cases))
}

fn target(stack: &Stack) -> Target {
    let tokens = Signer::new(AuthSettings::with_secret(stack.secret()));
    let payment_secret = stack.payment_secret().to_owned();
    Target {
        buyers: stack.buyers(),
        operations: stack.operations(),
        tokens,
        payment_secret,
        history: History::recorded(),
        followers: Followers::default(),
    }
}

/// How many faults overlap.
const AT_ONCE: usize = 3;

/// The faults that the nemesis has inflicted.
struct Attack {
    inflicted: Vec<(Fault, Outage)>,
    /// The time at which the attack began.
    began_ms: i64,
    /// The time at which every server answered again after the last fault.
    healed_at: Instant,
    healed_at_ms: i64,
}

impl Attack {
    /// Inflicts the faults at their times, and waits until everything has healed.
    async fn run(&mut self, stack: &Stack, faults: Vec<(Duration, Fault)>) {
        let start = Instant::now();
        self.began_ms = now_ms();
        let mut under_way = JoinSet::new();
        for (at, fault) in faults {
            tokio::time::sleep_until(start + at).await;
            // A loss comes alone.
            let others = if fault.loses().is_some() { 0 } else { AT_ONCE - 1 };
            while under_way.len() > others {
                self.record(under_way.join_next().await);
            }
            tracing::info!(at_s = start.elapsed().as_secs_f64(), ?fault, "inflicting a fault");
            let stack = stack.clone();
            under_way.spawn(async move { (fault, inflict(&stack, fault).await) });
            if fault.loses().is_some() {
                self.record(under_way.join_next().await);
            }
        }
        while !under_way.is_empty() {
            self.record(under_way.join_next().await);
        }
        self.inflicted.sort_by_key(|(_, outage)| outage.from_ms);
        stack.until_healed().await;
        (self.healed_at, self.healed_at_ms) = (Instant::now(), now_ms());
    }

    fn record(&mut self, inflicted: Option<Result<(Fault, Outage), JoinError>>) {
        self.inflicted.extend(inflicted.and_then(Result::ok));
    }

    fn report(self, stack: &Stack, plan: &ChaosPlan, sales: Vec<SaleReport>) -> ChaosReport {
        let mut faults: BTreeMap<String, u64> = BTreeMap::new();
        let hit = || self.inflicted.iter().filter(|(_, outage)| outage.missed.is_none());
        let in_report = |(_, outage): &(Fault, Outage)| Inflicted {
            at: (outage.from_ms - self.began_ms) as f64 / 1000.0,
            fault: outage.fault.clone(),
            missed: outage.missed.clone(),
        };
        for (fault, _) in hit() {
            *faults.entry(fault.kind()).or_default() += 1;
        }
        let inflicted = faults.values().sum();
        ChaosReport {
            seed: plan.seed,
            database: plan.database.name(),
            pay_within_s: plan.follow_up.then(|| plan.pay_within_s()),
            inflicted,
            missed: self.inflicted.len() as u64 - inflicted,
            losses: hit().filter(|(fault, _)| fault.loses().is_some()).count() as u64,
            faults,
            accepted: sales.iter().map(|sale| sale.drill.verdict.promised).sum(),
            ended_by_themselves: stack.unexpected_ends(),
            timeline: self.inflicted.iter().map(in_report).collect(),
            sales,
        }
    }
}

/// How long a fault waits for its victim to come back from an earlier one.
const VICTIM_BACK_WITHIN: Duration = Duration::from_secs(15);

/// Inflicts a fault until it is healed.
async fn inflict(stack: &Stack, fault: Fault) -> Outage {
    // A try that fails may get half way, so the fault counts from the first one on.
    let (from_ms, until) = (now_ms(), Instant::now() + VICTIM_BACK_WITHIN);
    let inflicted = loop {
        match nemesis::inflict(stack, fault).await {
            Err(missed) if missed.may_pass() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            inflicted => break inflicted,
        }
    };
    Outage {
        from_ms,
        to_ms: now_ms() + 1,
        fault: format!("{fault:?}"),
        may_undo: inflicted.as_ref().ok().copied().flatten(),
        loses: fault.loses().map(|kind| kind.name().to_owned()),
        missed: inflicted.err().map(|missed| missed.to_string()),
    }
}
