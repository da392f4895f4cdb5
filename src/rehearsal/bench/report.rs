//! The report of a benchmark, for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::stats::middle_round;

/// The figures of a benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The name of the benchmark.
    pub bench: &'static str,
    /// The figures, in the order in which they were measured.
    pub figures: Vec<Figure>,
    /// The error that ended the benchmark early, after these figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<String>,
}

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The thing measured and, after a semicolon, its ceiling.
    pub what: &'static str,
    /// The unit of both values.
    pub unit: &'static str,
    /// The value.
    pub measured: f64,
    /// The rate at which the servers alone do the same work, in the same run.
    pub ceiling: Option<f64>,
    /// The target.
    pub wanted: Wanted,
}

/// The target of a figure.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// At least this fraction of the ceiling.
    Ratio(f64),
    /// At most this, in the figure's unit.
    AtMost(f64),
    /// At least this, in the figure's unit.
    AtLeast(f64),
    /// No target: the figure is for information.
    #[serde(rename = "told")]
    Informational,
}

impl Figure {
    /// Picks, from rounds of a figure and its ceiling, the round with the median ratio.
    pub(super) fn beside(
        what: &'static str,
        unit: &'static str,
        rounds: Vec<(f64, f64)>,
        wanted: Wanted,
    ) -> Self {
        let (measured, ceiling) = middle_round(rounds);
        Self { what, unit, measured, ceiling: Some(ceiling), wanted }
    }

    /// A figure without a ceiling.
    pub(super) fn limit(what: &'static str, unit: &'static str, measured: f64, wanted: Wanted) -> Self {
        Self { what, unit, measured, ceiling: None, wanted }
    }

    /// The fraction of the ceiling that was reached; `None` without a ceiling.
    pub fn ratio(&self) -> Option<f64> {
        self.ceiling.map(|ceiling| self.measured / ceiling)
    }

    /// Whether the figure meets its target.
    pub fn is_met(&self) -> bool {
        match self.wanted {
            Wanted::Ratio(least) => self.ratio().is_some_and(|ratio| ratio >= least),
            Wanted::AtMost(most) => self.measured <= most,
            Wanted::AtLeast(least) => self.measured >= least,
            Wanted::Informational => true,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<58}  {:>10}  {:<9}  {:>10}  {:>6}  WANTED",
            "WHAT", "MEASURED", "UNIT", "CEILING", "RATIO"
        )?;
        for figure in &self.figures {
            let ceiling = figure.ceiling.map_or("-".to_owned(), number);
            let ratio = figure.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let wanted = match figure.wanted {
                Wanted::Ratio(least) => format!(">= {least:.2}"),
                Wanted::AtMost(most) => format!("<= {}", number(most)),
                Wanted::AtLeast(least) => format!(">= {}", number(least)),
                Wanted::Informational => "-".to_owned(),
            };
            let met = match figure.wanted {
                Wanted::Informational => "",
                _ if figure.is_met() => "met",
                _ => "short",
            };
            writeln!(
                f,
                "{}",
                format!(
                    "{:<58}  {:>10}  {:<9}  {ceiling:>10}  {ratio:>6}  {wanted:<8}  {met}",
                    figure.what,
                    number(figure.measured),
                    figure.unit
                )
                .trim_end()
            )?;
        }
        Ok(())
    }
}

fn number(number: f64) -> String {
    if number.abs() >= 100.0 { format!("{number:.0}") } else { format!("{number:.2}") }
}
