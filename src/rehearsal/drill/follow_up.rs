//! Buyers after their order: they pay, pay late, cancel, or do nothing.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::http::{Answer, Connection, HttpError};
use super::plan::FollowUp;
use super::target::Target;
use super::{follower, reads};
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::front::signature;
use crate::rehearsal::judge::{self, Ask, History, Intent, now_ms};

/// How many buyers act at the same time. During an outage each of them waits, and those who find no place pay too late,
/// so this is more than a crowd brings in a few seconds.
const AT_ONCE: usize = 1_024;
/// The longest wait before a request is repeated. Twice as long as before each time, as a provider does: during an outage
/// all of them together would otherwise keep the fronts busy with refusals.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// The payment provider's name in a drill.
pub(super) const PROVIDER: &str = "drill";

/// A buyer's intention, and the final answer to it.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) order: OrderId,
    pub(super) intent: Intent,
    /// `applied`, `late`, `retaken`, `cancelled`, `nothing` if nothing was sent, a code of the contract, `http_` and
    /// a status, or `unanswered`.
    pub(super) answer: String,
    /// The new order, if a late payment retook a unit.
    pub(super) new_order: Option<OrderId>,
    /// Whether the answer says what became of it. Without one, it may have been done or not.
    pub(super) is_final: bool,
}

/// Called for each payment that was applied to an order.
pub(super) type OnPaid = Arc<dyn Fn() + Send + Sync>;

/// An order with its buyer and their `authorization` header.
pub(super) struct Bought {
    pub(super) order: OrderId,
    pub(super) user: UserId,
    pub(super) bearer: String,
}

impl FollowUp {
    /// Derived from the order's random id, so that it is the same each time.
    pub(super) fn intent(&self, order: OrderId) -> Intent {
        let dice = u32::from(order.uuid().as_bytes()[15]) * 100 / 256;
        match dice {
            dice if dice < self.pay => Intent::Pays,
            dice if dice < self.pay + self.pay_late => Intent::PaysLate,
            dice if dice < self.pay + self.pay_late + self.cancel => Intent::Cancels,
            _ => Intent::NeverPays,
        }
    }
}

/// Follows up on each order that arrives until the channel is closed, and returns the outcomes. Calls `paid` for each
/// payment that was applied to an order.
pub(super) async fn act(
    target: &Target,
    follow_up: &FollowUp,
    sale: &SaleId,
    mut bought: mpsc::UnboundedReceiver<Bought>,
    paid: OnPaid,
) -> Vec<Outcome> {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    let mut outcomes = Vec::new();
    while let Some(bought) = bought.recv().await {
        follower::follow(target, sale, bought.order, (&bought.user, &bought.bearer));
        let slots = slots.clone();
        let (buyer, paid) = (Holder::new(target, follow_up, sale, bought), paid.clone());
        tasks.spawn(async move {
            if buyer.intent == Intent::PaysLate {
                tokio::time::sleep(Duration::from_secs(buyer.follow_up.pay_within_s.into())).await;
            }
            let _slot = slots.acquire_owned().await;
            buyer.act(&*paid).await
        });
        while let Some(done) = tasks.try_join_next() {
            outcomes.extend(done.ok());
        }
    }
    while let Some(done) = tasks.join_next().await {
        outcomes.extend(done.ok());
    }
    outcomes
}

/// A buyer with an order, and their intention for it.
pub(super) struct Holder {
    pub(super) intent: Intent,
    sale: SaleId,
    bought: Bought,
    address: std::net::SocketAddr,
    secret: String,
    follow_up: FollowUp,
    history: History,
}

impl Holder {
    pub(super) fn new(target: &Target, follow_up: &FollowUp, sale: &SaleId, bought: Bought) -> Self {
        Self {
            intent: follow_up.intent(bought.order),
            sale: sale.clone(),
            bought,
            address: target.buyers,
            secret: target.payment_secret.clone(),
            follow_up: follow_up.clone(),
            history: target.history.clone(),
        }
    }

    /// Carries out the intent, and calls `paid` if the payment was applied. If calls are recorded, the buyer also reads the
    /// order before and after.
    pub(super) async fn act(&self, paid: &(dyn Fn() + Send + Sync)) -> Outcome {
        self.read().await;
        let Reply { word: answer, new_order, is_final, .. } = match self.intent {
            Intent::NeverPays => Reply { word: "nothing".into(), is_final: true, ..Reply::default() },
            Intent::Cancels => self.cancel().await,
            Intent::Pays | Intent::PaysLate => self.pay().await,
        };
        if matches!(answer.as_str(), "applied" | "retaken") {
            paid();
        }
        self.read().await;
        Outcome { order: self.bought.order, intent: self.intent, answer, new_order, is_final }
    }

    async fn read(&self) {
        if self.history.is_recorded() {
            let (user, bearer) = (&self.bought.user, self.bought.bearer.as_str());
            let mut connection = Connection::new(self.address);
            reads::read(&mut connection, &self.history, &self.sale, (user, bearer), self.bought.order).await;
        }
    }

    /// Sends the payment event, and repeats it until its outcome is known, as a provider does.
    async fn pay(&self) -> Reply {
        let id = format!("evt-{}", self.bought.order);
        let body = serde_json::json!({
            "type": "payment.succeeded",
            "data": { "sale_id": self.sale, "order_id": self.bought.order },
        })
        .to_string();
        let path = format!("/v1/payments/callback/{PROVIDER}");
        let ask = Ask::Pay { order: self.bought.order.uuid(), event: id.clone() };
        self.until_known((&path, &body), &ask, |body| {
            let sent = Millis::now().0 / 1000;
            let signature = signature(&self.secret, &id, sent, body).unwrap_or_default();
            vec![
                ("webhook-id", id.clone()),
                ("webhook-timestamp", sent.to_string()),
                ("webhook-signature", signature),
            ]
        })
        .await
    }

    async fn cancel(&self) -> Reply {
        let path = format!("/v1/sales/{}/orders/{}:cancel", self.sale, self.bought.order);
        let ask = Ask::Cancel { order: self.bought.order.uuid() };
        self.until_known((&path, ""), &ask, |_| vec![("authorization", self.bought.bearer.clone())]).await
    }

    /// Repeats a request, with a new signature each time, until its answer is final. Each attempt has a connection of its own,
    /// so that it can reach another front: a provider does not keep one for a single event.
    async fn until_known(
        &self,
        (path, body): (&str, &str),
        ask: &Ask,
        headers: impl Fn(&str) -> Vec<(&'static str, String)>,
    ) -> Reply {
        let until = Instant::now() + self.follow_up.repeat_for;
        let mut wait = Duration::from_millis(20);
        loop {
            let headers = headers(body);
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let from = now_ms();
            let mut connection = Connection::new(self.address);
            let reply = read(connection.post(path, &headers, body.to_owned().into()).await);
            let heard = judge::Answer {
                status: reply.status,
                code: reply.word.clone(),
                order: None,
                new_order: reply.new_order.map(OrderId::uuid),
                is_durable: false,
            };
            self.history.add(from, self.bought.user.as_str(), ask.clone(), heard);
            if reply.is_final || Instant::now() >= until {
                return reply;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

#[derive(Default)]
struct Reply {
    status: Option<u16>,
    word: String,
    new_order: Option<OrderId>,
    is_final: bool,
}

fn read(answer: Result<Answer, HttpError>) -> Reply {
    let Ok((status, body)) = answer else {
        return Reply { word: "unanswered".into(), ..Reply::default() };
    };
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let new_order = body["new_order_id"].as_str().and_then(|id| id.parse().ok());
    let word = ["state", "status", "code"].into_iter().find_map(|name| body[name].as_str());
    let word = word.map_or_else(|| format!("http_{}", status.as_u16()), str::to_owned);
    let is_final = (status.is_success() && word != "pending")
        || (status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS);
    Reply { status: Some(status.as_u16()), word, new_order, is_final }
}
