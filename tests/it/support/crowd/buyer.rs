//! One buyer after the other: buys, reads, pays or cancels, and reads again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use doorbuster::domain::{Millis, OrderStatus};
use doorbuster::front::signature;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::history::{History, Plan};
use super::{LONG, PACE, Scene};
use crate::support::http::{Answer, Buyer, try_request};
use crate::support::{id, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The setting of a front that believes the crowd's payments.
pub const PAYMENT_SECRETS: &str = "payments.secrets=acme whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How often a buyer asks for an order, and pays or cancels it, until there is an answer.
const TRIES: u32 = 40;
/// How often a buyer reads the order while it is not confirmed.
const READS: u32 = 8;

struct Life {
    scene: Arc<Scene>,
    pace: Interval,
    nth: u32,
    buyer: Buyer,
    history: Arc<Mutex<History>>,
}

pub(super) async fn one_after_the_other(scene: Arc<Scene>) {
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !scene.stop.is_cancelled() {
        let nth = scene.next.fetch_add(1, Ordering::Relaxed);
        let plan =
            [Plan::Pays, Plan::Cancels, Plan::Keeps, Plan::Pays, Plan::Pays, Plan::Cancels][nth as usize % 6];
        let history = Arc::new(Mutex::new(History::new(format!("{plan:?}{nth}").to_lowercase(), plan)));
        let buyer = scene.buyer(&history);
        let mut life = Life { scene: scene.clone(), pace, nth, buyer, history };
        life.live().await;
        pace = life.pace;
    }
}

impl Scene {
    fn buyer(&self, history: &Mutex<History>) -> Buyer {
        Buyer::with(self.front, &self.tokens, &history.lock().unwrap().user, None)
    }

    fn note(&self, history: &Mutex<History>, what: String) {
        history.lock().unwrap().note(self.began, what);
    }

    fn breaks_a_rule(&self, history: &Mutex<History>, why: &str) {
        let mut history = history.lock().unwrap();
        history.note(self.began, format!("A RULE IS BROKEN: {why}"));
        self.broken.lock().unwrap().push(history.to_string());
    }

    /// Judges a state that an answer has shown.
    fn shows(&self, history: &Mutex<History>, known: OrderStatus, status: &str) {
        let Ok(status) = status.parse::<OrderStatus>() else {
            return self.breaks_a_rule(history, &format!("{status:?} is no state"));
        };
        let losses = self.losses.load(Ordering::SeqCst);
        let judged = {
            let mut history = history.lock().unwrap();
            let judged = history.judge(known, status);
            if judged.is_err() && history.was_undone(status, losses) { Ok(()) } else { judged }
        };
        match judged {
            Err(why) => self.breaks_a_rule(history, &why),
            Ok(()) => history.lock().unwrap().sees(status, losses),
        }
    }

    fn is_lost(&self, history: &Mutex<History>) -> bool {
        let order = history.lock().unwrap().order;
        order.is_some_and(|order| self.lost.lock().unwrap().contains(&order))
    }

    /// Reads an order that was accepted. Returns whether it could be read.
    async fn read(&self, buyer: &Buyer, history: &Mutex<History>) -> bool {
        let order = history.lock().unwrap().order.expect("accepted");
        let known = history.lock().unwrap().seen;
        let answer = buyer.try_get(&format!("/v1/sales/{}/orders/{order}", self.sale.id)).await;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(answer) = answer else {
            self.note(history, "read: no answer".into());
            return false;
        };
        let status = answer.json["status"].as_str().unwrap_or_default();
        self.note(history, format!("read: {} {}", answer.status, said(&answer)));
        match answer.status {
            200 => self.shows(history, known, status),
            503 => return false,
            404 if self.is_lost(history) => return false,
            _ => self.breaks_a_rule(history, &answer.text),
        }
        true
    }

    /// Reads all orders of a buyer, which have to contain the one that was accepted.
    async fn read_all(&self, buyer: &Buyer, history: &Mutex<History>) {
        let order = history.lock().unwrap().order.expect("accepted").to_string();
        let known = history.lock().unwrap().seen;
        let answer = buyer.try_get(&format!("/v1/sales/{}/orders/mine", self.sale.id)).await;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(answer) = answer.filter(|answer| answer.status != 503) else { return };
        let orders = answer.json["orders"].as_array().cloned().unwrap_or_default();
        match orders.iter().find(|found| found["order_id"] == order.as_str()) {
            Some(found) => self.shows(history, known, found["status"].as_str().unwrap_or_default()),
            None if self.is_lost(history) => {}
            None => self.breaks_a_rule(history, &format!("`mine` lacks it: {}", answer.text)),
        }
    }
}

/// The state or the code of an answer.
fn said(answer: &Answer) -> &str {
    answer.json["status"].as_str().unwrap_or_else(|| answer.code())
}

impl Life {
    async fn live(&mut self) {
        if !self.buys().await {
            return;
        }
        for _ in 0..READS {
            if self.scene.stop.is_cancelled() {
                return;
            }
            self.pace.tick().await;
            if self.scene.read(&self.buyer, &self.history).await
                && self.history.lock().unwrap().seen != OrderStatus::Accepted
            {
                break;
            }
        }
        let plan = self.history.lock().unwrap().plan;
        if plan != Plan::Keeps {
            self.acts(plan).await;
        }
        self.pace.tick().await;
        self.scene.read(&self.buyer, &self.history).await;
        self.pace.tick().await;
        self.asks_for_an_older_order().await;
    }

    /// Asks for an order, with the same key until the outcome is known. Returns whether it was accepted.
    async fn buys(&mut self) -> bool {
        self.scene.histories.lock().unwrap().push(self.history.clone());
        for _ in 0..TRIES {
            self.pace.tick().await;
            if self.scene.stop.is_cancelled() {
                return false;
            }
            let buying = self.scene.buying.clone().read_owned().await;
            let known = self.history.lock().unwrap().seen;
            let answer = self.buyer.try_buy(self.scene.sale.id.as_str(), "k").await;
            self.scene.requests.fetch_add(1, Ordering::Relaxed);
            drop(buying);
            let Some(answer) = answer else {
                self.history.lock().unwrap().unknown = true;
                self.scene.note(&self.history, "buy: no answer".into());
                continue;
            };
            let durability = answer.json["durability"].as_str().unwrap_or_default();
            let text = format!("buy: {} {} {durability} {}", answer.status, said(&answer), answer.order_id());
            self.scene.note(&self.history, text);
            match answer.status {
                200..=202 => {
                    let mut history = self.history.lock().unwrap();
                    history.order = Some(id(answer.order_id()));
                    history.accepted = Some(Instant::now());
                    drop(history);
                    self.scene.shows(&self.history, known, said(&answer));
                    return true;
                }
                503 => {}
                504 => self.history.lock().unwrap().unknown = true,
                _ => {
                    self.scene.breaks_a_rule(&self.history, &answer.text);
                    return false;
                }
            }
        }
        false
    }

    /// Pays or cancels until that is answered.
    async fn acts(&mut self, plan: Plan) {
        for _ in 0..TRIES {
            self.pace.tick().await;
            if self.scene.stop.is_cancelled() {
                return;
            }
            let answer = match plan {
                Plan::Pays => self.pays().await,
                _ => self.cancels().await,
            };
            self.scene.requests.fetch_add(1, Ordering::Relaxed);
            let Some(answer) = answer else {
                self.scene.note(&self.history, "act: no answer".into());
                continue;
            };
            let state = answer.json["state"].as_str().unwrap_or_else(|| said(&answer));
            self.scene.note(&self.history, format!("act: {} {state}", answer.status));
            let done = match (answer.status, state) {
                (200, "applied") => Some(OrderStatus::Paid),
                (200, "cancelled") => Some(OrderStatus::Cancelled),
                // Applied later, by itself.
                (200, "pending") => None,
                (503, _) => continue,
                (404, _) if self.scene.is_lost(&self.history) => return,
                _ => return self.scene.breaks_a_rule(&self.history, &answer.text),
            };
            let mut history = self.history.lock().unwrap();
            history.answered = Some(Instant::now());
            history.seen = done.unwrap_or(history.seen);
            return;
        }
    }

    /// By the provider's callback: a payment that is answered 200 outlives the database's last commits.
    async fn pays(&self) -> Option<Answer> {
        let (order, event) = {
            let mut history = self.history.lock().unwrap();
            history.acted = true;
            (history.order.expect("accepted"), format!("evt-{}", history.user))
        };
        let data = serde_json::json!({ "sale_id": self.scene.sale.id, "order_id": order });
        let body = serde_json::json!({ "type": "payment.succeeded", "data": data }).to_string();
        let sent = Millis::now().0 / 1_000;
        let signed = signature(SECRET, &event, sent, &body).expect("signed");
        let sent = sent.to_string();
        let headers =
            [("webhook-id", event.as_str()), ("webhook-timestamp", &sent), ("webhook-signature", &signed)];
        try_request(self.scene.front, "POST", "/v1/payments/callback/acme", &headers, body.as_bytes()).await
    }

    async fn cancels(&self) -> Option<Answer> {
        let _cancelling = self.scene.cancelling.clone().read_owned().await;
        let order = {
            let mut history = self.history.lock().unwrap();
            history.acted = true;
            history.order.expect("accepted")
        };
        self.buyer.try_post(&format!("/v1/sales/{}/orders/{order}:cancel", self.scene.sale.id), &[], "").await
    }

    /// An earlier buyer looks again, in every other life at all of their orders.
    async fn asks_for_an_older_order(&self) {
        let older = {
            let all = self.scene.histories.lock().unwrap();
            all[self.nth as usize * 7_919 % all.len()].clone()
        };
        if older.lock().unwrap().accepted.is_none() {
            return;
        }
        let buyer = self.scene.buyer(&older);
        match self.nth.is_multiple_of(2) {
            true => drop(self.scene.read(&buyer, &older).await),
            false => self.scene.read_all(&buyer, &older).await,
        }
    }
}

/// Waits until an order has the state that it has to end in; `None` if there is no order, or if it is lost.
pub(super) async fn final_status(scene: &Scene, history: Arc<Mutex<History>>) -> Option<OrderStatus> {
    history.lock().unwrap().accepted?;
    let buyer = scene.buyer(&history);
    let what = format!("the end of {}", history.lock().unwrap());
    until(&what, LONG, async || {
        let can_be_read = scene.read(&buyer, &history).await;
        if scene.is_lost(&history) {
            assert!(!can_be_read, "it was given up and is there: {}", history.lock().unwrap());
            return Some(None);
        }
        let history = history.lock().unwrap();
        (can_be_read && history.may_end(history.seen)).then_some(Some(history.seen))
    })
    .await
}
