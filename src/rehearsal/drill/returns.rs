//! The drill of returns: buyers come until every unit is paid for, though half of them never pay.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::afterwards::{self, Afterwards, Bought, Fate, Outcome};
use super::crowd::{self, Told};
use super::plan::Click;
use super::verdict::Books;
use super::{DrillError, Plan, Progress, TOKENS_LAST, Target, administer, open_sale, shut};
use crate::domain::{OrderStatus, SaleId, UserId};

/// What the drill of returns found.
#[derive(Debug, Clone, Serialize)]
pub struct Returns {
    pub sale_id: SaleId,
    pub units: i64,
    /// Orders that were accepted: units were sold so many times.
    pub accepted: u64,
    pub buyers: u32,
    pub seconds: f64,
    /// Orders by the state in which they ended.
    pub ended: BTreeMap<String, u64>,
    pub paid: i64,
    pub oversold: i64,
    pub lost: u64,
    pub leaked: i64,
    pub unfinished: u64,
    pub contradictions: Vec<String>,
}

impl Returns {
    pub fn balances(&self) -> bool {
        self.oversold == 0
            && self.lost == 0
            && self.leaked == 0
            && self.unfinished == 0
            && self.contradictions.is_empty()
    }

    /// Is every unit paid for?
    pub fn is_complete(&self) -> bool {
        self.paid == self.units
    }
}

/// Until no unit is left unpaid, or for as long as `plan.repeat_for`.
pub async fn run(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Returns, DrillError> {
    let Some(follow_up) = &plan.follow_up else {
        return Err(DrillError::Call { call: "planning".into(), why: "buyers who pay are needed".into() });
    };
    let admin = administer(target)?;
    let sale = open_sale(&admin, plan).await?;
    let started = Instant::now();
    progress.begin(usize::try_from(plan.units).unwrap_or(usize::MAX), "units paid for");
    let paid = Arc::new(AtomicI64::new(0));
    let (send, bought) = mpsc::unbounded_channel();
    let counted: Arc<dyn Fn() + Send + Sync> = {
        let (paid, progress) = (paid.clone(), progress.clone());
        Arc::new(move || {
            paid.fetch_add(1, Ordering::Relaxed);
            progress.step();
        })
    };
    let crowd = come(target, plan, &sale, &paid, &counted, send);
    let late = afterwards::act(target, follow_up, &sale, bought, counted.clone());
    let both = async { tokio::join!(crowd, late) };
    let told = stop.run_until_cancelled(both).await;
    progress.end();
    shut(&admin, &sale, plan, told.is_some()).await?;
    let ((told, mut outcomes, buyers), late) = told.ok_or(DrillError::Interrupted)?;
    outcomes.extend(late);
    let seconds = started.elapsed().as_secs_f64();
    progress.say("waiting until every order has ended");
    let books = Books::at_rest(&admin, &sale, plan).await?;
    Ok(judge(&sale, plan, &told, &outcomes, &books, buyers, seconds))
}

/// Buyers come one after the other, as many at once as there are connections; each does what he means to
/// with his order before the next one comes, but for those who pay late.
async fn come(
    target: &Target,
    plan: &Plan,
    sale: &SaleId,
    paid: &Arc<AtomicI64>,
    counted: &Arc<dyn Fn() + Send + Sync>,
    late: mpsc::UnboundedSender<Bought>,
) -> (Vec<Told>, Vec<Outcome>, u32) {
    let next = Arc::new(AtomicU32::new(0));
    let until = Instant::now() + plan.repeat_for;
    let path = format!("/v1/sales/{sale}/orders");
    let visitors = (0..plan.connections).map(|_| {
        let (next, paid, path, late) = (next.clone(), paid.clone(), path.clone(), late.clone());
        async move {
            let mut connection = super::http::Connection::new(target.buyers);
            let (mut all, mut outcomes) = (Vec::new(), Vec::new());
            while paid.load(Ordering::Relaxed) < plan.units && Instant::now() < until {
                let buyer = next.fetch_add(1, Ordering::Relaxed);
                let Ok(user) = UserId::parse(format!("buyer-{buyer:08}")) else { break };
                let bearer = format!("Bearer {}", target.tokens.mint(&user, None, TOKENS_LAST));
                let click = Click { at: Duration::ZERO, buyer, key: 0 };
                let told =
                    crowd::buy(&mut connection, &path, &user, &bearer, &click, Instant::now(), plan).await;
                match (told.has_order().then_some(told.order).flatten(), &plan.follow_up) {
                    (Some(order), Some(follow_up)) => {
                        let buyer = Afterwards::new(target, follow_up, sale, order, bearer.clone());
                        if buyer.fate == Fate::PaysLate {
                            let _ = late.send(Bought { order, bearer });
                        } else {
                            outcomes.push(buyer.act(&**counted).await);
                        }
                    }
                    // Sold out, for now.
                    _ => tokio::time::sleep(Duration::from_millis(250)).await,
                }
                all.push(told);
            }
            (all, outcomes)
        }
    });
    let (mut told, mut outcomes) = (Vec::new(), Vec::new());
    for (all, done) in futures_util::future::join_all(visitors).await {
        told.extend(all);
        outcomes.extend(done);
    }
    (told, outcomes, next.load(Ordering::Relaxed))
}

fn judge(
    sale: &SaleId,
    plan: &Plan,
    told: &[Told],
    outcomes: &[Outcome],
    books: &Books,
    buyers: u32,
    seconds: f64,
) -> Returns {
    let mut ended: BTreeMap<String, u64> = BTreeMap::new();
    for row in books.rows().values() {
        *ended.entry(row.status.as_str().to_owned()).or_default() += 1;
    }
    let promised = || told.iter().filter(|told| told.has_order()).filter_map(|told| told.order);
    Returns {
        sale_id: sale.clone(),
        units: books.stock(),
        accepted: promised().count() as u64,
        buyers,
        seconds,
        paid: books
            .rows()
            .values()
            .filter(|row| row.status == OrderStatus::Paid)
            .map(|row| row.quantity)
            .sum(),
        oversold: books.oversold(),
        lost: promised().filter(|id| !books.rows().contains_key(id)).count() as u64,
        leaked: books.leaked(),
        unfinished: books.unfinished(),
        contradictions: books.contradicts(plan, outcomes),
        ended,
    }
}

impl fmt::Display for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended: Vec<String> = self.ended.iter().map(|(state, count)| format!("{state} {count}")).collect();
        writeln!(f, "  buyers      {} in {:.0} s", self.buyers, self.seconds)?;
        writeln!(
            f,
            "  accepted    {} orders: each unit was sold {:.1} times",
            self.accepted,
            self.accepted as f64 / self.units.max(1) as f64
        )?;
        writeln!(f, "  ended       {}", ended.join(" · "))?;
        for contradiction in self.contradictions.iter().take(10) {
            writeln!(f, "  wrong       {contradiction}")?;
        }
        write!(
            f,
            "\n  paid {} of {} · {} oversold · {} lost · {} leaked",
            self.paid, self.units, self.oversold, self.lost, self.leaked
        )?;
        if self.unfinished > 0 {
            write!(f, " · {} unfinished", self.unfinished)?;
        }
        if !self.contradictions.is_empty() {
            write!(f, " · {} contradictions", self.contradictions.len())?;
        }
        Ok(())
    }
}
