//! Gauges of single sales, for the most active ones: a label for each sale ever made would fill Prometheus's memory. The
//! others are shown together as `other`.
//!
//! They are kept here and not by the recorder, which cannot forget the gauge of a sale that has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::{SaleId, Sku};

/// Sales with a label of their own.
const LABELLED: usize = 20;
/// The label of all others.
const OTHER: &str = "other";

/// How the values of the other sales become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// Added up.
    Sum,
    /// The highest.
    Highest,
}

/// A gauge of sales.
#[derive(Debug, Clone, Copy)]
pub struct SaleGauge {
    /// Its name.
    pub name: &'static str,
    /// What it says, in a sentence.
    pub help: &'static str,
    /// What it shows of the sales without a label of their own.
    pub together: Together,
}

const fn sum(name: &'static str, help: &'static str) -> SaleGauge {
    SaleGauge { name, help, together: Together::Sum }
}

const fn highest(name: &'static str, help: &'static str) -> SaleGauge {
    SaleGauge { name, help, together: Together::Highest }
}

/// All of them.
pub const SALE_GAUGES: &[SaleGauge] = &[
    highest("doorbuster_sale_paused", "1 while the sale is paused."),
    highest("doorbuster_sale_frozen", "1 while the sale is frozen, because Redis lost writes."),
    sum("doorbuster_outbox_orders", "Orders of the sale in flight."),
    highest("doorbuster_outbox_oldest_seconds", "Age of the sale's oldest order in flight."),
    sum("doorbuster_gate_units_left", "Units of an item left in the gate."),
    highest(
        "doorbuster_worker_sale_stalled",
        "1 while this worker has set the sale aside: a row of it is locked.",
    ),
    sum("doorbuster_audit_missing_units", "Units that the books of the sale lack."),
    sum("doorbuster_audit_oversold_units", "Units sold beyond the stock."),
    sum("doorbuster_audit_users_over_limit", "Users with more units than the sale allows."),
];

/// What a value belongs to: a sale, or an item of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// The sale.
    pub sale: SaleId,
    /// The item.
    pub sku: Option<Sku>,
}

impl Label {
    /// Of the sale as a whole.
    pub fn of(sale: &SaleId) -> Self {
        Self { sale: sale.clone(), sku: None }
    }
}

/// The gauges of a process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct SaleGauges(Arc<Mutex<Shown>>);

#[derive(Debug, Default)]
struct Shown {
    values: BTreeMap<&'static str, BTreeMap<Label, f64>>,
    labelled: BTreeSet<SaleId>,
}

impl SaleGauges {
    /// Replaces all values of a gauge: it forgets the sales that are not among them.
    pub fn show(&self, gauge: &'static str, values: BTreeMap<Label, f64>) {
        self.shown().values.insert(gauge, values);
    }

    /// Sets the value of one sale.
    pub fn show_one(&self, gauge: &'static str, sale: &SaleId, value: f64) {
        self.shown().values.entry(gauge).or_default().insert(Label::of(sale), value);
    }

    /// Says which sales are the most active, the most active first. The first twenty have a label of their own.
    pub fn rank(&self, sales: impl Iterator<Item = SaleId>) {
        // A sale of this name could not be distinguished from the others.
        let named = sales.filter(|sale| sale.as_str() != OTHER);
        self.shown().labelled = named.take(LABELLED).collect();
    }

    /// All of them in the text format of Prometheus.
    pub fn render(&self) -> String {
        let (mut text, shown) = (String::new(), self.shown());
        for SaleGauge { name, help, together } in SALE_GAUGES {
            let Some(values) = shown.values.get(name).filter(|values| !values.is_empty()) else { continue };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            for ((sale, sku), value) in together.bounded(values, &shown.labelled) {
                let sku = sku.map(|sku| format!(",sku=\"{}\"", escaped(sku))).unwrap_or_default();
                let _ = writeln!(text, "{name}{{sale=\"{}\"{sku}}} {value}", escaped(sale));
            }
            text.push('\n');
        }
        text
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Values<'a> = BTreeMap<(&'a str, Option<&'a str>), f64>;

impl Together {
    fn bounded<'a>(self, values: &'a BTreeMap<Label, f64>, labelled: &BTreeSet<SaleId>) -> Values<'a> {
        let mut bounded = Values::new();
        for (label, value) in values {
            let sku = label.sku.as_ref().map(Sku::as_str);
            if labelled.contains(&label.sale) {
                bounded.insert((label.sale.as_str(), sku), *value);
                continue;
            }
            let others = bounded.entry((OTHER, sku.map(|_| OTHER))).or_default();
            *others = match self {
                Self::Sum => *others + value,
                Self::Highest => others.max(*value),
            };
        }
        bounded
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(nth: usize) -> SaleId {
        SaleId::parse(format!("sale-{nth}")).unwrap()
    }

    #[test]
    fn sales_beyond_the_bound_are_shown_together() {
        let values: BTreeMap<Label, f64> = (0..25).map(|nth| (Label::of(&sale(nth)), nth as f64)).collect();
        let labelled: BTreeSet<SaleId> = (0..LABELLED).map(sale).collect();
        let sums = Together::Sum.bounded(&values, &labelled);
        assert_eq!(sums.len(), LABELLED + 1);
        assert_eq!(sums[&(OTHER, None)], 20.0 + 21.0 + 22.0 + 23.0 + 24.0);
        assert_eq!(sums[&("sale-3", None)], 3.0);
        assert_eq!(Together::Highest.bounded(&values, &labelled)[&(OTHER, None)], 24.0);
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
