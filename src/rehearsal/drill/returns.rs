//! The returns drill: buyers keep coming until every unit is paid for, although half of them never pay.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admin::Admin;
use super::click::{ClickResult, Clicker};
use super::error::DrillError;
use super::final_books::FinalBooks;
use super::follow_up::{self, Bought, Holder, OnPaid, Outcome};
use super::plan::{FollowUp, Plan};
use super::progress::Progress;
use super::target::Target;
use super::verdict::count;
use super::{contradictions, sale};
use crate::domain::{OrderId, OrderStatus, SaleId};
use crate::rehearsal::judge::Intent;

/// The report of the returns drill.
#[derive(Debug, Clone, Serialize)]
pub struct Returns {
    /// The sale that it created.
    pub sale_id: SaleId,
    /// The stock.
    pub units: i64,
    /// Accepted orders. Each unit is sold several times.
    pub accepted: u64,
    /// The number of buyers.
    pub buyers: u32,
    /// Seconds from the first buyer to the last paid unit.
    pub seconds: f64,
    /// Orders by their final state.
    pub ended: BTreeMap<String, u64>,
    /// Units that are paid for.
    pub paid: i64,
    /// Units sold beyond the stock.
    pub oversold: i64,
    /// Accepted orders that have no row, or failed.
    pub lost: u64,
    /// Units that are in none of the books.
    pub leaked: i64,
    /// Orders that did not end in time.
    pub unfinished: u64,
    /// Violations of the contract, one sentence each.
    pub contradictions: Vec<String>,
}

impl Returns {
    /// Whether every promise was kept.
    pub fn balances(&self) -> bool {
        self.oversold == 0
            && self.lost == 0
            && self.leaked == 0
            && self.unfinished == 0
            && self.contradictions.is_empty()
    }

    /// Whether every unit is paid for.
    pub fn is_complete(&self) -> bool {
        self.paid == self.units
    }
}

/// Runs until every unit is paid for, or `plan.repeat_for` has passed. `plan.follow_up` must be set. When `stop` is
/// cancelled, closes the sale and returns [`DrillError::Interrupted`].
pub async fn run(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Returns, DrillError> {
    let Some(follow_up) = &plan.follow_up else {
        return Err(DrillError::Call { call: "planning".into(), why: "buyers who pay are needed".into() });
    };
    let admin = Admin::of(target)?;
    let sale = sale::open(&admin, plan, false).await?;
    let started = Instant::now();
    progress.begin(usize::try_from(plan.units).unwrap_or(usize::MAX), "units paid for");
    let paid = Arc::new(AtomicI64::new(0));
    let on_paid: OnPaid = {
        let (paid, progress) = (paid.clone(), progress.clone());
        Arc::new(move || {
            paid.fetch_add(1, Ordering::Relaxed);
            progress.step();
        })
    };
    let (send, bought) = mpsc::unbounded_channel();
    let late = follow_up::act(target, follow_up, &sale, bought, on_paid.clone());
    let stream =
        Stream { target, plan, follow_up, sale: &sale, paid: &paid, on_paid, next: AtomicU32::new(0) };
    let both = async { tokio::join!(stream.run(send), late) };
    let answered = stop.run_until_cancelled(both).await;
    progress.end();
    sale::close(&admin, &sale, plan, answered.is_some()).await?;
    let (mut visits, late) = answered.ok_or(DrillError::Interrupted)?;
    visits.outcomes.extend(late);
    let seconds = started.elapsed().as_secs_f64();
    progress.say("waiting until every order has ended");
    let books = FinalBooks::at_rest(&admin, &sale, plan).await?;
    visits.buyers = stream.next.load(Ordering::Relaxed);
    Ok(judge(&sale, plan, &visits, &books, seconds))
}

/// Buyers who come one after the other, as many at once as there are connections.
struct Stream<'a> {
    target: &'a Target,
    plan: &'a Plan,
    follow_up: &'a FollowUp,
    sale: &'a SaleId,
    /// Units paid for.
    paid: &'a AtomicI64,
    on_paid: OnPaid,
    /// The number of the next buyer.
    next: AtomicU32,
}

/// The actions of buyers, and the answers to them.
#[derive(Default)]
struct Visits {
    results: Vec<ClickResult>,
    outcomes: Vec<Outcome>,
    buyers: u32,
}

impl Stream<'_> {
    /// Each buyer follows up on their order before the next one comes. Those who pay late are sent to `late` instead,
    /// so that nobody waits for them.
    async fn run(&self, late: mpsc::UnboundedSender<Bought>) -> Visits {
        let until = Instant::now() + self.plan.repeat_for;
        let lanes = (0..self.plan.connections).map(|_| self.lane(until, &late));
        let mut visits = Visits::default();
        for lane in futures_util::future::join_all(lanes).await {
            visits.results.extend(lane.results);
            visits.outcomes.extend(lane.outcomes);
        }
        visits
    }

    /// The buyers who share one connection, one after the other.
    async fn lane(&self, until: Instant, late: &mpsc::UnboundedSender<Bought>) -> Visits {
        let mut clicker = Clicker::new(self.target, self.sale, self.plan);
        let mut visits = Visits::default();
        while self.paid.load(Ordering::Relaxed) < self.plan.units && Instant::now() < until {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((user, bearer)) = self.target.buyer(nth) else { break };
            let wanted = self.plan.wanted(nth, 0);
            let result = clicker.click((&user, &bearer), 0, wanted, Instant::now()).await;
            match result.has_order().then_some(result.order).flatten() {
                Some(order) => {
                    let bought = Bought { order, user, bearer };
                    if self.follow_up.intent(order) == Intent::PaysLate {
                        let _ = late.send(bought);
                    } else {
                        let buyer = Holder::new(self.target, self.follow_up, self.sale, bought);
                        visits.outcomes.push(buyer.act(&*self.on_paid).await);
                    }
                }
                // Sold out for now.
                None => tokio::time::sleep(Duration::from_millis(250)).await,
            }
            visits.results.push(result);
        }
        visits
    }
}

/// An order that has failed is as lost to its buyer as one without a row.
fn is_lost(status: Option<OrderStatus>) -> bool {
    status.is_none_or(|status| status == OrderStatus::Failed)
}

fn judge(sale: &SaleId, plan: &Plan, visits: &Visits, books: &FinalBooks, seconds: f64) -> Returns {
    let results = visits.results.iter().filter(|result| result.has_order());
    let promised: Vec<OrderId> = results.filter_map(|result| result.order).collect();
    let paid = books.rows.values().filter(|row| row.status == OrderStatus::Paid);
    Returns {
        sale_id: sale.clone(),
        units: books.stock(),
        accepted: promised.len() as u64,
        buyers: visits.buyers,
        seconds,
        paid: paid.map(|row| row.quantity).sum(),
        oversold: books.oversold(),
        lost: promised.iter().filter(|id| is_lost(books.status(**id))).count() as u64,
        leaked: books.leaked(),
        unfinished: books.unfinished(),
        contradictions: contradictions::of_follow_ups(books, plan, &visits.outcomes),
        ended: count(books.rows.values().map(|row| row.status.as_str())),
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
