//! The judgement: what each rule found.

use std::fmt;

use serde::Serialize;

use super::case::Case;
use super::facts::Facts;
use super::rule::{Finding, Kind};
use super::rules::RULES;
use super::story;

/// What the rules found in a case.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// Broken promises.
    pub broken: Vec<Finding>,
    /// Floors that were not reached.
    pub short: Vec<Finding>,
    /// What the floors measured, each with its name.
    pub measured: Vec<(&'static str, f64)>,
    /// Calls that were judged.
    pub calls: usize,
    /// Orders that were judged.
    pub orders: usize,
    /// Orders that Redis alone held, and lost: the documents say so.
    pub lost_with_redis: usize,
    /// The story of each buyer who met a broken promise, for the first few.
    #[serde(skip)]
    pub stories: Vec<String>,
}

/// How many stories are written.
const STORIES: usize = 3;

/// Applies every rule.
pub fn judge(case: &Case) -> Judgement {
    let facts = Facts::of(case);
    let (mut broken, mut short, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    for rule in RULES {
        let look = (rule.look)(&facts);
        measured.extend(look.measured.map(|share| (rule.name, share)));
        let findings = look.found.into_iter().map(|found| Finding {
            rule: rule.name,
            says: found.says,
            order: found.order,
            user: found.user,
        });
        match rule.kind {
            Kind::Promise => broken.extend(findings),
            Kind::Floor => short.extend(findings),
        }
    }
    let stories = broken.iter().filter_map(|finding| story::of(&facts, finding)).take(STORIES).collect();
    Judgement {
        broken,
        short,
        measured,
        calls: case.calls.len(),
        orders: case.books.orders.len(),
        lost_with_redis: facts.lost_with_redis.len(),
        stories,
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  judged      {} calls and {} orders by {} rules",
            self.calls,
            self.orders,
            RULES.len()
        )?;
        if self.lost_with_redis > 0 {
            writeln!(
                f,
                "  excused     {} orders that Redis alone held were lost with it",
                self.lost_with_redis
            )?;
        }
        let measured: Vec<String> =
            self.measured.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
        writeln!(f, "  floors      {}", measured.join(" · "))?;
        for finding in self.short.iter() {
            writeln!(f, "  short       {}: {}", finding.rule, finding.says)?;
        }
        for finding in self.broken.iter().take(10) {
            writeln!(f, "  broken      {}: {}", finding.rule, finding.says)?;
        }
        for story in &self.stories {
            write!(f, "{story}")?;
        }
        Ok(())
    }
}
