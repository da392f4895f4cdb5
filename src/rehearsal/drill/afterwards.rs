//! What buyers do with their orders: pay, pay too late, cancel, or nothing at all.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Target;
use super::http::Connection;
use super::plan::FollowUp;
use crate::domain::{Millis, OrderId, SaleId};
use crate::front::signature;

/// Buyers who act at once.
const AT_ONCE: usize = 64;
/// The payment provider's name in a drill.
pub(super) const PROVIDER: &str = "drill";

/// What a buyer means to do with his order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pays,
    /// After the deadline, or right after he has cancelled.
    PaysLate,
    Cancels,
    NeverPays,
}

/// What a buyer wanted, and what he was told in the end.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) order: OrderId,
    pub(super) fate: Fate,
    /// `applied`, `late`, `retaken`, `cancelled`, a code of the contract, or `unanswered`.
    pub(super) told: String,
    /// The order that took a unit again.
    pub(super) new_order: Option<OrderId>,
}

/// An order with its buyer's token.
pub(super) struct Bought {
    pub(super) order: OrderId,
    pub(super) bearer: String,
}

impl FollowUp {
    /// By the order's id, which is random: the same for whoever asks.
    fn fate(&self, order: OrderId) -> Fate {
        let dice = u32::from(order.uuid().as_bytes()[15]) * 100 / 256;
        match dice {
            dice if dice < self.pay => Fate::Pays,
            dice if dice < self.pay + self.pay_late => Fate::PaysLate,
            dice if dice < self.pay + self.pay_late + self.cancel => Fate::Cancels,
            _ => Fate::NeverPays,
        }
    }
}

/// Acts for each order that comes, until no more can come; says what came of each. `paid` is called for
/// each payment that an order has taken.
pub(super) async fn act(
    target: &Target,
    follow_up: &FollowUp,
    sale: &SaleId,
    mut bought: mpsc::UnboundedReceiver<Bought>,
    paid: Arc<dyn Fn() + Send + Sync>,
) -> Vec<Outcome> {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    let mut outcomes = Vec::new();
    while let Some(Bought { order, bearer }) = bought.recv().await {
        let slots = slots.clone();
        let (buyer, paid) = (Afterwards::new(target, follow_up, sale, order, bearer), paid.clone());
        tasks.spawn(async move {
            if buyer.fate == Fate::PaysLate {
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

/// A buyer with an order, and what he means to do with it.
pub(super) struct Afterwards {
    pub(super) fate: Fate,
    sale: SaleId,
    order: OrderId,
    bearer: String,
    address: std::net::SocketAddr,
    secret: String,
    follow_up: FollowUp,
}

impl Afterwards {
    pub(super) fn new(
        target: &Target,
        follow_up: &FollowUp,
        sale: &SaleId,
        order: OrderId,
        bearer: String,
    ) -> Self {
        Self {
            fate: follow_up.fate(order),
            sale: sale.clone(),
            order,
            bearer,
            address: target.buyers,
            secret: target.payment_secret.clone(),
            follow_up: follow_up.clone(),
        }
    }

    /// Does it, and calls `paid` where an order has taken the payment.
    pub(super) async fn act(&self, paid: &(dyn Fn() + Send + Sync)) -> Outcome {
        let (told, new_order) = match self.fate {
            Fate::NeverPays => ("nothing".to_owned(), None),
            Fate::Cancels => (self.cancel().await, None),
            Fate::Pays | Fate::PaysLate => self.pay().await,
        };
        if matches!(told.as_str(), "applied" | "retaken") {
            paid();
        }
        Outcome { order: self.order, fate: self.fate, told, new_order }
    }

    /// As a provider does: the same event again until it is known what has become of it.
    async fn pay(&self) -> (String, Option<OrderId>) {
        let id = format!("evt-{}", self.order);
        let body = serde_json::json!({
            "type": "payment.succeeded",
            "data": { "sale_id": self.sale, "order_id": self.order },
        })
        .to_string();
        let path = format!("/v1/payments/callback/{PROVIDER}");
        self.until_known(&path, &body, |body| {
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

    async fn cancel(&self) -> String {
        let path = format!("/v1/sales/{}/orders/{}:cancel", self.sale, self.order);
        self.until_known(&path, "", |_| vec![("authorization", self.bearer.clone())]).await.0
    }

    async fn until_known(
        &self,
        path: &str,
        body: &str,
        headers: impl Fn(&str) -> Vec<(&'static str, String)>,
    ) -> (String, Option<OrderId>) {
        let mut connection = Connection::new(self.address);
        let until = Instant::now() + self.follow_up.repeat_for;
        let mut wait = Duration::from_millis(20);
        loop {
            let headers = headers(body);
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let got = connection.post(path, &headers, body.to_owned().into()).await;
            let (told, new_order, known) = match got {
                Ok((status, body)) => read(status, &body),
                Err(_) => ("unanswered".into(), None, false),
            };
            if known || Instant::now() >= until {
                return (told, new_order);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }
}

/// The last says whether it is final.
fn read(status: StatusCode, body: &[u8]) -> (String, Option<OrderId>, bool) {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let new_order = body["new_order_id"].as_str().and_then(|id| id.parse().ok());
    let word = ["state", "status", "code"].into_iter().find_map(|name| body[name].as_str());
    let told = word.map_or_else(|| format!("http_{}", status.as_u16()), str::to_owned);
    let known = (status.is_success() && told != "pending")
        || (status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS);
    (told, new_order, known)
}
