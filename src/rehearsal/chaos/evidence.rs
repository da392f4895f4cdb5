//! Gathers the case of a chaos drill for the judge.

use std::time::{Duration, Instant};

use super::error::ChaosError;
use super::stack::Stack;
use crate::rehearsal::drill::{self, DrillRun, Plan, Target};
use crate::rehearsal::judge::{Books, Case, OperatorAct, Outage, Sale, Servers, now_ms, read_books};
use crate::rehearsal::servers::Kind;

/// How long the books may take to be at rest once the product says that they are.
const AT_REST_WITHIN: Duration = Duration::from_secs(30);

/// How long the shop may take until it has every webhook: one that was refused, or whose front was killed, comes again.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// What the nemesis did, and when everything had healed.
#[derive(Clone)]
pub(super) struct Nemesis {
    pub(super) outages: Vec<Outage>,
    pub(super) healed_at_ms: i64,
}

/// Reads the servers past every proxy, has every buyer read their order for the last time, and those who follow
/// theirs hear what is left, and returns the case.
pub(super) async fn gather(
    stack: &Stack,
    crowd: &Plan,
    target: &Target,
    nemesis: Nemesis,
    run: &DrillRun,
) -> Result<Case, ChaosError> {
    let sale = &run.report.sale_id;
    let rest_at_ms = now_ms() - i64::try_from(run.at_rest.elapsed().as_millis()).unwrap_or(0);
    let (books, waited) = books_at_rest(stack, sale.as_str(), crowd.follow_up.is_some()).await?;
    let rest_at_ms = if waited { now_ms() } else { rest_at_ms };
    let books = once_the_shop_has_all(stack, sale.as_str(), books).await?;
    target.followers.finish().await;
    let mut calls = target.history.take();
    drill::read_in_the_end(target, sale, &calls).await;
    calls.extend(target.history.take());
    calls.sort_by_key(|call| call.to_ms);
    let pay_within_ms = crowd.follow_up.as_ref().map(|follow_up| i64::from(follow_up.pay_within_s) * 1_000);
    Ok(Case {
        sale: Sale {
            id: sale.to_string(),
            items: crowd.stock().into_iter().collect(),
            limit: i64::from(crowd.limit),
            pay_within_ms,
            rebuy: crowd.follow_up.as_ref().is_none_or(|follow_up| follow_up.rebuy),
        },
        intents: run.intents.iter().map(|(order, intent)| (order.uuid(), *intent)).collect(),
        acts: acts(run),
        outages: nemesis.outages,
        healed_at_ms: nemesis.healed_at_ms,
        rest_at_ms,
        books,
        webhooks: stack.shop().map(|shop| shop.taken_of(sale.as_str())),
        sale_webhooks: stack.shop().map(|shop| shop.events_of(sale.as_str())),
        calls,
    })
}

/// The books, and whether they were not at rest at first. If they do not come to rest, the judge says what is left.
async fn books_at_rest(stack: &Stack, sale: &str, buyers_pay: bool) -> Result<(Books, bool), ChaosError> {
    let servers = servers(stack).await;
    let until = Instant::now() + AT_REST_WITHIN;
    let mut waited = false;
    loop {
        let books = read_books(&servers, sale).await?;
        if books.are_at_rest(buyers_pay) || Instant::now() >= until {
            return Ok((books, waited));
        }
        waited = true;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The books, once no webhook waits any more. They may be given again after a failure, so this takes longer.
async fn once_the_shop_has_all(stack: &Stack, sale: &str, mut books: Books) -> Result<Books, ChaosError> {
    let until = Instant::now() + TAKEN_WITHIN;
    while books.webhooks_waiting > 0 && stack.shop().is_some() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(500)).await;
        books = read_books(&servers(stack).await, sale).await?;
    }
    Ok(books)
}

async fn servers(stack: &Stack) -> Servers {
    Servers {
        redis: stack.url(Kind::Redis).await.unwrap_or_default(),
        database: stack.url(stack.database()).await.unwrap_or_default(),
    }
}

/// The acts of the operator, and the end of the sale.
fn acts(run: &DrillRun) -> Vec<OperatorAct> {
    let acts = run.report.acts.iter().map(|act| OperatorAct {
        from_ms: act.at_ms.0,
        to_ms: act.at_ms.1,
        act: act.act.clone(),
        answer: act.answer.clone(),
        sku: act.sku.clone(),
        units: act.units,
        perhaps: act.perhaps,
    });
    let close = OperatorAct {
        from_ms: run.closed_ms.0,
        to_ms: run.closed_ms.1,
        act: "close".into(),
        answer: "done".into(),
        sku: String::new(),
        units: 0,
        perhaps: 0,
    };
    acts.chain([close]).collect()
}
