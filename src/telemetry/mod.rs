//! What a process tells of itself to monitoring: the catalogue of its metrics, the gauges of sales, and a dashboard.

mod catalog;
mod dashboard;
mod sale_gauges;

pub use catalog::{Kind, METRICS, Metric};
pub use dashboard::{grafana, queries};
pub use sale_gauges::{Label, SALE_GAUGES, SaleGauge, SaleGauges, Together};
