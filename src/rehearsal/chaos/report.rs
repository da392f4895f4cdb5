//! The report of a chaos drill, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::rehearsal::drill::Report;
use crate::rehearsal::judge::Judgement;

/// A fault as it happened.
#[derive(Debug, Clone, Serialize)]
pub struct Inflicted {
    /// Seconds after the first click.
    pub at: f64,
    /// The fault with its parameters.
    pub fault: String,
    /// Why it had no effect; usually its victim was already down.
    pub missed: Option<String>,
}

/// The report of a chaos drill.
#[derive(Debug, Serialize)]
pub struct ChaosReport {
    /// The seed that planned the faults.
    pub seed: u64,
    /// The name of the database.
    pub database: &'static str,
    /// Seconds that buyers had to pay; `None` if they did not pay.
    pub pay_within_s: Option<u32>,
    /// Faults with an effect, by kind.
    pub faults: BTreeMap<String, u64>,
    /// The number of faults with an effect.
    pub inflicted: u64,
    /// How many of them lost data.
    pub losses: u64,
    /// The number of faults without an effect.
    pub missed: u64,
    /// Orders that some answer to a buyer reported as taken.
    pub accepted: u64,
    /// Processes that ended without being killed or stopped: a bug.
    pub ended_by_themselves: Vec<String>,
    /// Every fault, in order of time.
    pub timeline: Vec<Inflicted>,
    /// Each sale.
    pub sales: Vec<SaleReport>,
}

/// One sale of a chaos drill.
#[derive(Debug, Serialize)]
pub struct SaleReport {
    /// Seconds from the time when every server answered and the last buyer had an answer, until the last order had
    /// its row and was settled in the gate.
    pub settled_s: f64,
    /// The drill's own report.
    pub drill: Report,
    /// What the judge found.
    pub judgement: Judgement,
}

impl SaleReport {
    /// Whether drill and judge found every promise kept.
    pub fn balances(&self) -> bool {
        // The drill does not know which orders may be lost.
        let lost = self.judgement.lost_with_redis as u64;
        self.drill.verdict.balances_without(lost) && self.judgement.broken.is_empty()
    }

    /// Whether everyone was answered, and every floor was reached.
    pub fn is_complete(&self) -> bool {
        self.drill.complete && self.judgement.short.is_empty()
    }
}

impl ChaosReport {
    /// Whether every promise of each sale was kept, and no process ended by itself.
    pub fn balances(&self) -> bool {
        self.sales.iter().all(SaleReport::balances) && self.ended_by_themselves.is_empty()
    }

    /// Whether everyone was answered, and every floor was reached.
    pub fn is_complete(&self) -> bool {
        self.sales.iter().all(SaleReport::is_complete)
    }

    /// The whole report in one line.
    fn verdict(&self) -> String {
        if self.balances() && self.is_complete() {
            return "every promise was kept, and every floor was reached".into();
        }
        // The first finding of each rule is in the line: of a long report often the end alone is left.
        let mut failed: BTreeMap<String, &str> = BTreeMap::new();
        if let Some(ended) = self.ended_by_themselves.first() {
            failed.insert("a process ended by itself".into(), ended);
        }
        for sale in &self.sales {
            let name = &sale.drill.sale_id;
            let Judgement { broken, short, .. } = &sale.judgement;
            for (how, findings) in [("broke", broken), ("missed", short)] {
                for finding in findings {
                    failed.entry(format!("{name} {how} {}", finding.rule)).or_insert(&finding.says);
                }
            }
            if !sale.drill.balances || !sale.drill.complete {
                failed.insert(name.to_string(), "see the answers to its clicks");
            }
        }
        let failed = failed.into_iter().map(|(what, how)| format!("{what}: {how}"));
        failed.collect::<Vec<_>>().join(" · ")
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(f, "  seed        {} on {}", self.seed, self.database)?;
        writeln!(
            f,
            "  faults      {} inflicted, {} of them losses of data; {} missed",
            self.inflicted, self.losses, self.missed
        )?;
        for line in faults.chunks(5) {
            writeln!(f, "              {}", line.join(" · "))?;
        }
        for fault in self.timeline.iter().filter(|fault| fault.missed.is_some()).take(10) {
            let why = fault.missed.as_deref().unwrap_or_default();
            writeln!(f, "  missed      {} at {:.1} s: {why}", fault.fault, fault.at)?;
        }
        for ended in &self.ended_by_themselves {
            writeln!(f, "  wrong       {ended}")?;
        }
        if !(self.balances() && self.is_complete()) {
            for fault in &self.timeline {
                writeln!(f, "  {:>9.1} s {}", fault.at, fault.fault)?;
            }
        }
        for (nth, sale) in self.sales.iter().enumerate() {
            let gap = if nth == 0 { "\n" } else { "\n\n" };
            writeln!(f, "{gap}  sale        {}", sale.drill.sale_id)?;
            writeln!(
                f,
                "  settled     {:.1} s after every server answered and the last buyer had an answer",
                sale.settled_s
            )?;
            write!(f, "{}{}", sale.judgement, sale.drill)?;
        }
        // Last, where it is seen first.
        write!(f, "\n\n  seed {} on {}: {}", self.seed, self.database, self.verdict())
    }
}
