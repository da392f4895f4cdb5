//! The report of a drill, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::click::ClickResult;
use super::operator::Act;
use super::plan::Plan;
use super::verdict::{Verdict, count};
use crate::domain::SaleId;

/// The answers of a working stack.
const EXPECTED: [&str; 5] = ["accepted", "confirmed", "repeat", "sold_out", "already_ordered"];

/// The report of a drill.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The name of the plan.
    pub drill: &'static str,
    /// The sale that it created.
    pub sale_id: SaleId,
    /// Clicks that were sent.
    pub clicks: usize,
    /// The percentage of clicks that got a final answer.
    pub answered_percent: f64,
    /// How often each expected answer was given.
    pub answers: BTreeMap<String, u64>,
    /// How often each other answer was given.
    pub unexpected: BTreeMap<String, u64>,
    /// Clicks sent again because their outcome was unknown.
    pub repeats: u64,
    /// Why the first unanswered click got no answer.
    pub trouble: Option<String>,
    /// How long the answers took.
    pub latency_ms: Latency,
    /// What the operator did during the drill.
    pub acts: Vec<Act>,
    /// The answers compared with the books.
    pub verdict: Verdict,
    /// Whether every promise was kept.
    pub balances: bool,
    /// Whether every unit that was wanted is sold, and everyone who clicked got an expected answer.
    pub complete: bool,
}

/// Milliseconds from the time that a click was due to its final answer.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        sale: &SaleId,
        results: &[ClickResult],
        acts: Vec<Act>,
        verdict: Verdict,
    ) -> Self {
        let (mut answers, mut unexpected) = (BTreeMap::new(), BTreeMap::new());
        for result in results {
            // If the operator pauses the sale or limits the rate, these answers are expected.
            let steered =
                plan.steering.is_some() && ["sale_paused", "rate_limited"].contains(&result.code.as_str());
            let limited = plan.limit > 1 && result.code == "purchase_limit";
            let expected = steered || limited || EXPECTED.contains(&result.code.as_str());
            let counts = if expected { &mut answers } else { &mut unexpected };
            *counts.entry(result.code.clone()).or_default() += 1;
        }
        let answered = results.iter().filter(|result| result.is_answered()).count();
        let as_expected: u64 = answers.values().sum();
        Self {
            drill: plan.name,
            sale_id: sale.clone(),
            clicks: results.len(),
            answered_percent: answered as f64 * 100.0 / results.len().max(1) as f64,
            answers,
            unexpected,
            repeats: results.iter().map(|result| u64::from(result.repeats)).sum(),
            trouble: results.iter().find_map(|result| result.trouble.clone()),
            latency_ms: latency(results),
            balances: verdict.balances(),
            // The founding load tests allow one click in a thousand to go unanswered. A refusal without a reason is no answer.
            complete: verdict.is_complete() && as_expected as f64 >= results.len() as f64 * 0.999,
            acts,
            verdict,
        }
    }
}

fn latency(results: &[ClickResult]) -> Latency {
    // Microseconds, up to two minutes, with three digits.
    let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3) else {
        return Latency { mean: 0.0, p50: 0.0, p99: 0.0, p999: 0.0, max: 0.0 };
    };
    for result in results {
        histogram.saturating_record(u64::try_from(result.latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    Latency {
        mean: histogram.mean() / 1000.0,
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64 / 1000.0,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(" · ")
        };
        writeln!(f, "  clicks      {} · {:.2} % answered", self.clicks, self.answered_percent)?;
        writeln!(f, "  answers     {}", line(&self.answers))?;
        if !self.unexpected.is_empty() {
            writeln!(f, "  unexpected  {}", line(&self.unexpected))?;
        }
        if let Some(trouble) = &self.trouble {
            writeln!(f, "  trouble     {trouble}")?;
        }
        if self.repeats > 0 {
            writeln!(f, "  repeats     {} clicks sent again with the same key", self.repeats)?;
        }
        let Latency { mean, p50, p99, p999, max } = self.latency_ms;
        writeln!(
            f,
            "  latency     mean {mean:.1} ms · p50 {p50:.1} · p99 {p99:.1} · p99.9 {p999:.1} · max {max:.1}"
        )?;
        if !self.acts.is_empty() {
            let units: i64 = self.acts.iter().map(|act| act.units).sum();
            writeln!(f, "  acts        {}, {units:+} units of stock", line(&by_name(&self.acts)))?;
        }
        let verdict = &self.verdict;
        if !verdict.follow_ups.is_empty() {
            writeln!(f, "  afterwards  {}", line(&verdict.follow_ups))?;
            writeln!(f, "  ended       {}", line(&verdict.ended))?;
        }
        if verdict.unheard > 0 {
            writeln!(f, "  unheard     {} orders of buyers who got no answer", verdict.unheard)?;
        }
        for contradiction in verdict.contradictions.iter().take(10) {
            writeln!(f, "  wrong       {contradiction}")?;
        }
        write!(f, "\n  {verdict}")
    }
}

/// How often each act was done, and how often it got another answer.
fn by_name(acts: &[Act]) -> BTreeMap<String, u64> {
    let names: Vec<String> = acts
        .iter()
        .map(|act| {
            let verb = act.act.split(' ').next().unwrap_or_default();
            if act.answer == "done" { verb.to_owned() } else { format!("{verb} {}", act.answer) }
        })
        .collect();
    count(names.iter().map(String::as_str))
}
