//! What one buyer did, the answers they got, and the rules that every answer has to keep.

use doorbuster::domain::{OrderId, OrderStatus};
use tokio::time::Instant;

/// What a buyer does with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    Pays,
    Cancels,
    Keeps,
}

/// One buyer, with at most one order.
#[derive(Debug, Clone)]
pub struct History {
    pub user: String,
    pub plan: Plan,
    /// When the buyer first asked for an order.
    pub asked: Instant,
    /// When the buyer first learned that it is accepted.
    pub accepted: Option<Instant>,
    pub order: Option<OrderId>,
    /// The latest state that an answer has shown, or that a payment or a cancellation was answered with.
    pub seen: OrderStatus,
    /// When the order was last read.
    pub read: Option<Instant>,
    /// Whether the payment or cancellation was sent, and when it was answered 200.
    pub acted: bool,
    pub answered: Option<Instant>,
    /// A state that was read before the act that leads to it was answered: what the order was before, and how far
    /// [`super::Scene::losses`] had counted.
    unanswered: Option<(OrderStatus, u64)>,
    /// The database has lost such a state.
    undone: bool,
    /// A request to buy ended without an answer that says whether there is an order.
    pub unknown: bool,
    /// Every answer with its time in seconds. Answers that repeat the one before are counted.
    answers: Vec<(String, String, u32)>,
}

impl History {
    pub fn new(user: String, plan: Plan) -> Self {
        Self {
            user,
            plan,
            asked: Instant::now(),
            accepted: None,
            order: None,
            seen: OrderStatus::Accepted,
            read: None,
            acted: false,
            answered: None,
            unanswered: None,
            undone: false,
            unknown: false,
            answers: Vec::new(),
        }
    }

    pub fn note(&mut self, began: Instant, what: String) {
        if let Some((_, _, times)) = self.answers.last_mut().filter(|(_, last, _)| *last == what) {
            *times += 1;
            return;
        }
        self.answers.push((format!("{:.3}", began.elapsed().as_secs_f64()), what, 1));
    }

    /// Whether an order in state `before` may now be in state `status`. `before` is what the buyer knew when they sent
    /// the request: two answers may overtake each other.
    pub fn judge(&self, before: OrderStatus, status: OrderStatus) -> Result<(), String> {
        use OrderStatus::{Accepted, Cancelled, Confirmed, Paid};
        let goes_forward = match before {
            Accepted => true,
            Confirmed => status != Accepted,
            _ => status == before,
        };
        let was_asked_for = match status {
            Accepted | Confirmed => true,
            Paid => self.acted && self.plan == Plan::Pays,
            Cancelled => self.acted && self.plan == Plan::Cancels,
            _ => false,
        };
        match (goes_forward, was_asked_for) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("it was {before} and is {status}")),
            (_, false) => Err(format!("it is {status}, which nobody asked for")),
        }
    }

    /// Takes note of a state that was read, and that may be.
    pub fn sees(&mut self, status: OrderStatus, losses: u64) {
        self.read = Some(Instant::now());
        // A slower answer may show less than a faster one has shown meanwhile.
        if status == self.seen || self.judge(self.seen, status).is_err() {
            return;
        }
        if self.acted
            && self.answered.is_none()
            && matches!(status, OrderStatus::Paid | OrderStatus::Cancelled)
        {
            self.unanswered = Some((self.seen, losses));
        }
        self.seen = status;
    }

    /// Whether the order may be back in state `status`, because the database has lost a change that was read and never
    /// answered. The order log need not have such a change.
    pub fn was_undone(&mut self, status: OrderStatus, losses: u64) -> bool {
        if let Some((before, then)) = self.unanswered
            && self.answered.is_none()
            && (then != losses || !then.is_multiple_of(2))
        {
            self.seen = before;
            self.unanswered = None;
            self.undone = true;
        }
        self.undone && self.judge(self.seen, status).is_ok()
    }

    /// Whether this is how the order may end.
    pub fn may_end(&self, status: OrderStatus) -> bool {
        let done = match self.plan {
            Plan::Pays => OrderStatus::Paid,
            Plan::Cancels => OrderStatus::Cancelled,
            Plan::Keeps => OrderStatus::Confirmed,
        };
        // An act without an answer may have had its effect.
        let undone = self.answered.is_none() && status == OrderStatus::Confirmed;
        undone || status == done && (self.acted || self.plan == Plan::Keeps)
    }

    /// Whether the buyer may have an order that they do not know of.
    pub fn may_have_another(&self) -> bool {
        self.unknown && self.order.is_none()
    }
}

impl std::fmt::Display for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = self.order.map(|id| id.to_string()).unwrap_or_default();
        writeln!(f, "{} ({:?}), order {order}:", self.user, self.plan)?;
        for (at, what, times) in &self.answers {
            writeln!(f, "  {at:>8} {times:>3} x {what}")?;
        }
        Ok(())
    }
}
