//! What a drill found, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::crowd::Told;
use super::{Act, Plan, Verdict};
use crate::domain::SaleId;

/// What a crowd may be told when everything works.
const EXPECTED: [&str; 5] = ["accepted", "confirmed", "repeat", "sold_out", "already_ordered"];

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub drill: &'static str,
    pub sale_id: SaleId,
    pub clicks: usize,
    /// Of a hundred clicks, how many got an answer.
    pub answered_percent: f64,
    pub answers: BTreeMap<String, u64>,
    pub unexpected: BTreeMap<String, u64>,
    /// Clicks sent again because their outcome was unknown.
    pub repeats: u64,
    /// The first reason why a click had no answer.
    pub trouble: Option<String>,
    pub latency_ms: Latency,
    /// What the operator did meanwhile.
    pub acts: Vec<Act>,
    pub verdict: Verdict,
    pub balances: bool,
    /// Everything was sold that was wanted, and everyone who clicked was answered.
    pub complete: bool,
}

/// From the time that a click was due to its answer, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Report {
    pub(super) fn new(plan: &Plan, sale: &SaleId, told: &[Told], acts: Vec<Act>, verdict: Verdict) -> Self {
        let (mut answers, mut unexpected) = (BTreeMap::new(), BTreeMap::new());
        for told in told {
            // An operator who pauses, or limits the rate, means it.
            let steered =
                plan.steering.is_some() && ["sale_paused", "rate_limited"].contains(&told.code.as_str());
            let expected = steered || EXPECTED.contains(&told.code.as_str());
            let book = if expected { &mut answers } else { &mut unexpected };
            *book.entry(told.code.clone()).or_default() += 1;
        }
        let answered = told.iter().filter(|told| told.is_answered()).count();
        Self {
            drill: plan.name,
            sale_id: sale.clone(),
            clicks: told.len(),
            answered_percent: answered as f64 * 100.0 / told.len().max(1) as f64,
            answers,
            unexpected,
            repeats: told.iter().map(|told| u64::from(told.repeats)).sum(),
            trouble: told.iter().find_map(|told| told.trouble.clone()),
            latency_ms: latency(told),
            balances: verdict.balances(),
            // The founding load tests allow one answer in a thousand to be missing.
            complete: verdict.is_complete() && answered as f64 >= told.len() as f64 * 0.999,
            acts,
            verdict,
        }
    }
}

fn latency(told: &[Told]) -> Latency {
    // Microseconds, to two minutes, three digits.
    let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3) else {
        return Latency { mean: 0.0, p50: 0.0, p99: 0.0, p999: 0.0, max: 0.0 };
    };
    for told in told {
        histogram.saturating_record(u64::try_from(told.latency.as_micros()).unwrap_or(u64::MAX).max(1));
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
        let counts = |book: &BTreeMap<String, u64>| {
            book.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(" · ")
        };
        writeln!(f, "  clicks      {} · {:.2} % answered", self.clicks, self.answered_percent)?;
        writeln!(f, "  answers     {}", counts(&self.answers))?;
        if !self.unexpected.is_empty() {
            writeln!(f, "  unexpected  {}", counts(&self.unexpected))?;
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
            writeln!(f, "  acts        {}, {units:+} units of stock", counts(&by_name(&self.acts)))?;
        }
        let verdict = &self.verdict;
        if !verdict.fates.is_empty() {
            writeln!(f, "  afterwards  {}", counts(&verdict.fates))?;
            writeln!(f, "  ended       {}", counts(&verdict.ended))?;
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

/// How often each act was done, and what else was told.
fn by_name(acts: &[Act]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for act in acts {
        let verb = act.act.split(' ').next().unwrap_or_default();
        let name = if act.answer == "done" { verb.to_owned() } else { format!("{verb} {}", act.answer) };
        *counts.entry(name).or_default() += 1;
    }
    counts
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sold {} of {} · {} oversold · {} duplicate · {} lost",
            self.sold, self.units, self.oversold, self.duplicate, self.lost
        )?;
        for (count, what) in [
            (i64::try_from(self.failed).unwrap_or(i64::MAX), "failed after acceptance"),
            (self.unsold, "unsold though wanted"),
            (self.leaked, "leaked"),
            (i64::try_from(self.unfinished).unwrap_or(i64::MAX), "unfinished"),
            (i64::try_from(self.contradictions.len()).unwrap_or(i64::MAX), "contradictions"),
        ] {
            if count != 0 {
                write!(f, " · {count} {what}")?;
            }
        }
        Ok(())
    }
}
