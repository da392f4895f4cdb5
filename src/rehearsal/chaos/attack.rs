//! A chaos drill from the start of its stack to its report.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::ChaosError;
use super::evidence::{self, Nemesis};
use super::fault::{self, Fault};
use super::nemesis;
use super::plan::ChaosPlan;
use super::report::{ChaosReport, Inflicted};
use super::stack::Stack;
use super::supervisor::supervise;
use crate::front::{AuthSettings, Signer};
use crate::rehearsal::drill::{self, DrillRun, Progress, Target};
use crate::rehearsal::judge::{Case, History, Judgement, Outage, judge, now_ms};

/// Starts everything under `home`, attacks it during a drill, and stops it. All traffic stays on 127.0.0.1. Returns the
/// case with the report, so that it can be kept.
pub async fn run(
    home: &Path,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(ChaosReport, Case), ChaosError> {
    progress.say("starting the servers, two fronts and two workers");
    let stack = Stack::start(home, plan.database, &plan.settings).await?;
    tokio::spawn(supervise(stack.clone()));
    let result = attack(&stack, plan, progress, stop).await;
    stack.stop().await;
    result
}

async fn attack(
    stack: &Stack,
    plan: &ChaosPlan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(ChaosReport, Case), ChaosError> {
    let target = target(stack);
    drill::until_ready(&target, Duration::from_secs(60)).await?;
    let faults = fault::plan(plan.seed, plan.faults, plan.lasts, plan.database);
    let mut attack =
        Attack { timeline: Vec::new(), outages: Vec::new(), healed_at: Instant::now(), healed_at_ms: 0 };
    let run = drill::run_during(&target, &plan.crowd(), progress, stop, attack.run(stack, faults)).await?;
    progress.say("judging");
    let nemesis = Nemesis { outages: std::mem::take(&mut attack.outages), healed_at_ms: attack.healed_at_ms };
    let case = evidence::gather(stack, plan, &target, nemesis, &run).await?;
    let judgement = judge(&case);
    Ok((attack.report(stack, plan, run, judgement), case))
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
    }
}

/// The faults that the nemesis has inflicted.
struct Attack {
    timeline: Vec<(Fault, Inflicted)>,
    /// The same for the judge.
    outages: Vec<Outage>,
    /// The time at which every server answered again after the last fault.
    healed_at: Instant,
    healed_at_ms: i64,
}

impl Attack {
    /// Inflicts the faults at their times, and waits until everything has healed.
    async fn run(&mut self, stack: &Stack, faults: Vec<(Duration, Fault)>) {
        let start = Instant::now();
        for (at, fault) in faults {
            tokio::time::sleep_until(start + at).await;
            let (at, from_ms) = (start.elapsed().as_secs_f64(), now_ms());
            tracing::info!(at_s = at, ?fault, "inflicting a fault");
            let inflicted = nemesis::inflict(stack, fault).await;
            let may_undo = inflicted.as_ref().ok().copied().flatten();
            let missed = inflicted.err().map(|missed| missed.to_string());
            let fault_text = format!("{fault:?}");
            self.outages.push(Outage {
                from_ms,
                to_ms: now_ms() + 1,
                fault: fault_text.clone(),
                missed: missed.clone(),
                loses: fault.loses().map(|kind| kind.name().to_owned()),
                may_undo,
            });
            self.timeline.push((fault, Inflicted { at, fault: fault_text, missed }));
        }
        stack.until_healed().await;
        (self.healed_at, self.healed_at_ms) = (Instant::now(), now_ms());
    }

    fn report(self, stack: &Stack, plan: &ChaosPlan, run: DrillRun, judgement: Judgement) -> ChaosReport {
        let mut faults: BTreeMap<String, u64> = BTreeMap::new();
        let hit = || self.timeline.iter().filter(|(_, inflicted)| inflicted.missed.is_none());
        for (fault, _) in hit() {
            *faults.entry(fault.kind()).or_default() += 1;
        }
        let inflicted = faults.values().sum();
        let quiet_since = self.healed_at.max(run.answered_at);
        ChaosReport {
            seed: plan.seed,
            database: plan.database.name(),
            pay_within_s: plan.follow_up.then(|| plan.pay_within_s()),
            inflicted,
            missed: self.timeline.len() as u64 - inflicted,
            losses: hit().filter(|(fault, _)| fault.loses().is_some()).count() as u64,
            faults,
            accepted: run.report.verdict.promised,
            settled_s: run.at_rest.duration_since(quiet_since).as_secs_f64(),
            ended_by_themselves: stack.unexpected_ends(),
            timeline: self.timeline.into_iter().map(|(_, inflicted)| inflicted).collect(),
            drill: run.report,
            judgement,
        }
    }
}
