//! A sale's terms as options, for creating a sale and for changing it later. Also who acts, and why.

use std::collections::BTreeMap;

use super::ended::Failed;
use crate::domain::{ActRequest, LatePayment, Millis, Rate, Sku, TermsChange};

/// The value `none` removes a term.
#[derive(Debug, Clone)]
struct OrNone<T>(Option<T>);

impl<T: std::str::FromStr> std::str::FromStr for OrNone<T> {
    type Err = T::Err;
    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct TermsArgs {
    /// RFC 3339. A new sale without it opens now.
    #[arg(long, value_name = "TIME")]
    opens_at: Option<Millis>,
    /// RFC 3339, or none to sell until the sale is closed.
    #[arg(long, value_name = "TIME|none")]
    closes_at: Option<OrNone<Millis>>,
    /// Units per buyer. 1 by default in a new sale.
    #[arg(long, value_name = "UNITS")]
    limit: Option<u32>,
    /// Units of one item per buyer. May be repeated.
    #[arg(long = "item-limit", value_name = "SKU=UNITS|none")]
    item_limits: Vec<String>,
    /// Seconds after its confirmation within which an order must be paid, or none.
    #[arg(long, value_name = "SECONDS|none")]
    pay_within: Option<OrNone<u32>>,
    /// Whether a buyer whose order has ended may buy again.
    #[arg(long, value_name = "true|false")]
    rebuy: Option<bool>,
    /// For a payment that arrives after its order has ended: retake (take a unit again, if one is left) or refund.
    #[arg(long, value_name = "POLICY")]
    late_payment: Option<LatePayment>,
    /// Attempts per buyer, such as 5/10s, or none.
    #[arg(long, value_name = "RATE|none")]
    user_rate: Option<OrNone<Rate>>,
    /// Attempts of all buyers together, such as 5000/1s, or none.
    #[arg(long, value_name = "RATE|none")]
    sale_rate: Option<OrNone<Rate>>,
    /// The message that buyers see while the sale is paused, or none.
    #[arg(long, value_name = "TEXT|none")]
    message: Option<OrNone<String>>,
    /// Seconds after which buyers should try again, or none.
    #[arg(long, value_name = "SECONDS|none")]
    retry_after: Option<OrNone<u32>>,
}

impl TermsArgs {
    pub(super) fn opens_at(&self) -> Option<Millis> {
        self.opens_at
    }

    pub(super) fn change(self) -> Result<TermsChange, Failed> {
        let mut item_limits = BTreeMap::new();
        for text in &self.item_limits {
            let wrong =
                || Failed::Usage(format!("--item-limit {text}: write it as SKU=UNITS, such as shoe=2"));
            let (sku, limit) = text.split_once('=').ok_or_else(wrong)?;
            let OrNone(limit) = limit.parse().map_err(|_| wrong())?;
            item_limits.insert(sku.parse::<Sku>()?, limit);
        }
        Ok(TermsChange {
            opens_at: self.opens_at,
            closes_at: self.closes_at.map(|at| at.0),
            limit_per_user: self.limit,
            item_limits,
            pay_within_s: self.pay_within.map(|seconds| seconds.0),
            rebuy: self.rebuy,
            late_payment: self.late_payment,
            user_rate: self.user_rate.map(|rate| rate.0),
            sale_rate: self.sale_rate.map(|rate| rate.0),
            message: self.message.map(|text| text.0),
            retry_after_s: self.retry_after.map(|seconds| seconds.0),
        })
    }
}

/// Who acts, and why: recorded in the history of the sale or the order.
#[derive(Debug, clap::Args)]
pub(super) struct Reason {
    /// The reason, for the history.
    #[arg(long)]
    reason: Option<String>,
    /// Your name. By default the one you are logged in with.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Reason {
    pub(super) fn request(self) -> ActRequest {
        ActRequest::by(operator(self.by)).because(self.reason)
    }
}

/// The name that the history shows; by default that of the user who is logged in.
pub(super) fn operator(name: Option<String>) -> String {
    let name = name.or_else(|| std::env::var("USER").ok()).filter(|name| !name.is_empty());
    name.map_or_else(|| "operator".to_owned(), |name| format!("operator {name}"))
}
