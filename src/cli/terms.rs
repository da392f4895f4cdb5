//! A sale's terms as options of a command: for creating one, and for changing it.

use std::collections::BTreeMap;

use super::Failed;
use crate::domain::{LatePayment, Millis, Rate, Sku, TermsChange};

/// `none` takes a rule away.
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
    /// RFC 3339; a new sale opens now, if it is left out.
    #[arg(long, value_name = "TIME")]
    opens_at: Option<Millis>,
    /// RFC 3339, or none: open until it is closed.
    #[arg(long, value_name = "TIME|none")]
    closes_at: Option<OrNone<Millis>>,
    /// Units per buyer; of a new sale 1, if it is left out.
    #[arg(long, value_name = "UNITS")]
    limit: Option<u32>,
    /// Units of one item per buyer. May be repeated.
    #[arg(long = "item-limit", value_name = "SKU=UNITS|none")]
    item_limits: Vec<String>,
    /// Seconds from the confirmation within which an order must be paid, or none.
    #[arg(long, value_name = "SECONDS|none")]
    pay_within: Option<OrNone<u32>>,
    /// May a buyer whose order has ended buy again?
    #[arg(long, value_name = "true|false")]
    rebuy: Option<bool>,
    /// What becomes of a payment for an order that has ended: retake (a unit, if there is one) or refund.
    #[arg(long, value_name = "POLICY")]
    late_payment: Option<LatePayment>,
    /// Attempts of one buyer, such as 5/10s, or none.
    #[arg(long, value_name = "RATE|none")]
    user_rate: Option<OrNone<Rate>>,
    /// Attempts of all buyers together, such as 5000/1s, or none.
    #[arg(long, value_name = "RATE|none")]
    sale_rate: Option<OrNone<Rate>>,
    /// Told to buyers while the sale is paused, or none.
    #[arg(long, value_name = "TEXT|none")]
    message: Option<OrNone<String>>,
    /// Seconds after which they are told to try again, or none.
    #[arg(long, value_name = "SECONDS|none")]
    retry_after: Option<OrNone<u32>>,
}

impl TermsArgs {
    pub(super) fn opens_at(&self) -> Option<Millis> {
        self.opens_at
    }

    pub(super) fn amendment(self) -> Result<TermsChange, Failed> {
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

/// Who does it, and why: kept in the history of the sale or the order.
#[derive(Debug, clap::Args)]
pub(super) struct Why {
    #[arg(long)]
    reason: Option<String>,
    /// Your name; the one that you are logged in with, if it is left out.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Why {
    pub(super) fn asked(self) -> crate::domain::ActRequest {
        crate::domain::ActRequest::by(operator(self.by)).because(self.reason)
    }
}

/// Whoever is logged in, where no name is given.
pub(super) fn operator(name: Option<String>) -> String {
    let name = name.or_else(|| std::env::var("USER").ok()).filter(|name| !name.is_empty());
    name.map_or_else(|| "operator".to_owned(), |name| format!("operator {name}"))
}
