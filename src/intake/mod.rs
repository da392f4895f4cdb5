//! One buyer's request, from admission to an answer that is true: the gate decides, the relay
//! carries the order to the broker, the books tell what became of it.
//!
//! Knows no HTTP. Every answer that a buyer can expect is a value of [`Answer`].

mod refusal_cache;
mod relay;
mod row_reader;
mod sales;
mod shared_poll;
mod status;

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{
    Attempt, Durability, Fingerprint, IdempotencyKey, KeyDigest, Limited, Millis, Order, OrderId,
    OrderStatus, SaleId, Sku, Ticket, UserId, Verdict,
};
use crate::fault::fault;
use crate::gate::{Gate, GateError, until_refusals_expire};
use crate::queue::Publisher;
use crate::store::Store;

pub use relay::Relay;
pub use sales::{KnownSale, Sales};
use status::told;
pub use status::{OrderView, StatusUnknown};

/// Which servers must hold an order before its buyer is told `accepted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityPolicy {
    /// Redis and RabbitMQ, else the outcome is unknown.
    BrokerOnly,
    /// Redis and RabbitMQ, or Redis alone while RabbitMQ is away; the answer says which.
    BrokerPreferred,
    /// Redis alone; RabbitMQ gets it right after.
    Outbox,
}

#[derive(Debug, Clone)]
pub struct IntakeSettings {
    pub durability: DurabilityPolicy,
    /// How long a request waits for the broker's confirm.
    pub confirm_within: Duration,
    /// How long what is known of a sale may be reused for checks that the gate makes again.
    pub sale_cache: Duration,
    /// How often the orders that requests wait for are looked at, all at once.
    pub watch_every: Duration,
}

/// When to ask again about a draft whose opening time is over.
const UNTIL_OPENED: Duration = Duration::from_secs(5);

/// What a buyer asks for, after the syntax has been checked.
#[derive(Debug, Clone)]
pub struct OrderRequest {
    pub sale: SaleId,
    pub user: UserId,
    pub sku: Option<Sku>,
    pub quantity: u32,
    pub key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone)]
pub enum Answer {
    /// Accepted now.
    Accepted {
        order: Order,
        durability: Durability,
    },
    /// The same click again: the same order, as it is now.
    Repeat(Box<OrderView>),
    /// The same click again, and its status cannot be read now.
    RepeatUnreadable(OrderId),
    SaleNotFound,
    SkuRequired,
    UnknownSku,
    InvalidQuantity {
        limit: u32,
    },
    KeyRequired,
    KeyReused,
    NotOpen {
        now: Millis,
        opens_at: Millis,
    },
    Closed,
    Paused {
        message: Option<String>,
        /// Seconds.
        retry_after: Option<u64>,
    },
    RateLimited(Limited),
    SoldOut,
    AlreadyOrdered(OrderId),
    PurchaseLimit {
        limit: u32,
    },
    Overloaded,
    /// Nothing was taken.
    GateUnavailable(String),
    /// The unit may be taken; the same key again tells.
    OutcomeUnknown(OrderId, String),
}

impl Answer {
    /// Whoever is told this knows of an order of his.
    fn tells_of_an_order(&self) -> bool {
        match self {
            Self::Accepted { .. }
            | Self::Repeat(_)
            | Self::RepeatUnreadable(_)
            | Self::KeyReused
            | Self::AlreadyOrdered(_)
            | Self::PurchaseLimit { .. }
            | Self::OutcomeUnknown(..) => true,
            Self::SaleNotFound
            | Self::SkuRequired
            | Self::UnknownSku
            | Self::InvalidQuantity { .. }
            | Self::KeyRequired
            | Self::NotOpen { .. }
            | Self::Closed
            | Self::Paused { .. }
            | Self::RateLimited(_)
            | Self::SoldOut
            | Self::Overloaded
            | Self::GateUnavailable(_) => false,
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    gate: Gate,
    store: Store,
    relay: Relay,
    sales: Sales,
    poll: shared_poll::SharedPoll,
    refusals: refusal_cache::RefusalCache,
    reader: row_reader::RowReader,
    settings: IntakeSettings,
}

impl Intake {
    /// Must be called inside a tokio runtime. Waits for no server.
    pub fn new(gate: Gate, publisher: Publisher, store: Store, settings: IntakeSettings) -> Self {
        Self {
            relay: Relay::new(gate.clone(), publisher),
            sales: Sales::new(gate.clone(), store.clone(), settings.sale_cache),
            poll: shared_poll::SharedPoll::spawn(gate.clone(), settings.watch_every),
            refusals: refusal_cache::RefusalCache::new(gate.clone()),
            reader: row_reader::RowReader::spawn(store.clone()),
            gate,
            store,
            settings,
        }
    }

    pub fn sales(&self) -> &Sales {
        &self.sales
    }

    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Places an order. On `Accepted` the order is held by the servers that `durability` names.
    /// May be repeated with the same key: the answer is then the same order.
    pub async fn place(&self, wish: OrderRequest) -> Answer {
        let sku = match self.sku(&wish).await {
            Ok(sku) => sku,
            Err(refusal) => return refusal,
        };
        let OrderRequest { sale, user, quantity, key, .. } = &wish;
        if let Some(verdict) = self.refusals.refusal(sale, user, &sku, *quantity, key.is_some()).await {
            metrics::counter!("intake_refused_from_memory_total").increment(1);
            return refused(verdict);
        }
        // Most of a rush ends above, and should not carry the room for what follows.
        Box::pin(self.attempt(wish, sku)).await
    }

    async fn attempt(&self, wish: OrderRequest, sku: Sku) -> Answer {
        let attempt = Attempt {
            id: OrderId::generate(),
            fingerprint: Fingerprint::of_body(&sku, wish.quantity),
            key: KeyDigest::of_key(wish.key.as_ref()),
            keyed: wish.key.is_some(),
            sale: wish.sale,
            user: wish.user,
            sku,
            quantity: wish.quantity,
        };
        let id = attempt.id;
        let (sale, user, quantity) = (attempt.sale.clone(), attempt.user.clone(), attempt.quantity);
        let decided = self.gate.admit(attempt).await;
        let heard = Instant::now();
        let answer = self.answer(decided, id, &sale, &user, quantity).await;
        // Most have waited for the broker meanwhile.
        if answer.tells_of_an_order() {
            until_refusals_expire(heard).await;
        }
        answer
    }

    async fn answer(
        &self,
        decided: Result<Verdict, GateError>,
        id: OrderId,
        sale: &SaleId,
        user: &UserId,
        quantity: u32,
    ) -> Answer {
        match decided {
            Ok(Verdict::Accepted(order)) => self.accepted(order).await,
            // Repeats in boxes: an order that is new should not carry the room for them.
            Ok(Verdict::InFlight(ticket)) if !ticket.ended => Box::pin(self.in_flight(ticket)).await,
            // Its row is committed: the script has just seen that its entry is gone, or says that it ended.
            Ok(Verdict::Settled(id) | Verdict::InFlight(Ticket { order: Order { id, .. }, .. })) => {
                match Box::pin(self.row(sale, user, id)).await {
                    Ok(Some(view)) => Answer::Repeat(Box::new(view)),
                    Ok(None) | Err(_) => Answer::RepeatUnreadable(id),
                }
            }
            Ok(Verdict::PurchaseLimit { limit }) if quantity > limit => Answer::InvalidQuantity { limit },
            Ok(verdict) => {
                if matches!(verdict, Verdict::SoldOut | Verdict::NotOpen { .. } | Verdict::Closed) {
                    self.refusals.refused(sale);
                }
                refused(verdict)
            }
            Err(GateError::Late(why)) => Answer::OutcomeUnknown(id, why),
            Err(GateError::Full(_)) => Answer::Overloaded,
            // It ran, and its answer made no sense: what it did is not known.
            Err(error @ GateError::Broken(_)) => Answer::OutcomeUnknown(id, error.to_string()),
            Err(error) => Answer::GateUnavailable(error.to_string()),
        }
    }

    /// Checks the wish against what is known of the sale, and says which item is meant. The gate checks
    /// all of it again.
    async fn sku(&self, wish: &OrderRequest) -> Result<Sku, Answer> {
        let sale = match self.sales.get(&wish.sale).await {
            Ok(KnownSale::Loaded(sale)) => sale,
            Ok(KnownSale::NotOpened(row)) => {
                let now = Millis::now();
                // Its time may have come; what is missing is the operator.
                let opens_at = row.sale.window.opens_at.max(now.plus(UNTIL_OPENED));
                return Err(Answer::NotOpen { now, opens_at });
            }
            Ok(KnownSale::Lost) => {
                return Err(Answer::GateUnavailable("the sale must be rebuilt in the gate".into()));
            }
            Ok(KnownSale::Ended(_)) => return Err(Answer::Closed),
            Ok(KnownSale::Missing) => return Err(Answer::SaleNotFound),
            Err(error) => return Err(Answer::GateUnavailable(error.to_string())),
        };
        let sku = match (&wish.sku, &sale.items[..]) {
            (Some(sku), items) if items.iter().any(|item| item.sku == *sku) => sku.clone(),
            (Some(_), _) => return Err(Answer::UnknownSku),
            (None, [only]) => only.sku.clone(),
            (None, _) => return Err(Answer::SkuRequired),
        };
        // The limit is the gate's to judge: it may have been changed since an order was placed that
        // comes again now.
        if wish.quantity == 0 {
            return Err(Answer::InvalidQuantity { limit: sale.limit_per_user });
        }
        Ok(sku)
    }

    async fn accepted(&self, order: Order) -> Answer {
        let id = order.id;
        let carried = self.carry(&order).await;
        fault!("answer.before", return Answer::OutcomeUnknown(id, "injected".into()));
        match carried {
            Ok(durability) => Answer::Accepted { order, durability },
            Err(why) => Answer::OutcomeUnknown(id, why),
        }
    }

    /// A repeat joins the publish of the first, or makes up for one that died.
    async fn in_flight(&self, ticket: Ticket) -> Answer {
        let Ticket { order, mut durability, .. } = ticket;
        if durability == Durability::Outbox {
            match self.carry(&order).await {
                Ok(carried) => durability = carried,
                Err(why) => return Answer::OutcomeUnknown(order.id, why),
            }
        }
        Answer::Repeat(Box::new(OrderView::in_flight(order, durability)))
    }

    async fn carry(&self, order: &Order) -> Result<Durability, String> {
        let carried = self.relay.carry(order);
        if self.settings.durability == DurabilityPolicy::Outbox {
            return Ok(Durability::Outbox);
        }
        let confirmed = tokio::time::timeout(self.settings.confirm_within, carried).await;
        match (confirmed, self.settings.durability) {
            (Ok(true), _) => Ok(Durability::Broker),
            (_, DurabilityPolicy::BrokerOnly) => Err("the broker has not confirmed the order".into()),
            (_, _) => Ok(Durability::Outbox),
        }
    }

    /// The order once it is no longer `accepted`, or as it is when `wait` is over.
    pub async fn view_within(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
        wait: Duration,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        let until = Instant::now() + wait;
        loop {
            let view = self.look_up(sale, user, id).await?;
            let pending = view.as_ref().is_some_and(|view| view.status == OrderStatus::Accepted);
            if !pending || Instant::now() >= until {
                return Ok(told(view).await);
            }
            let _ = tokio::time::timeout_at(until, self.poll.settled(sale, id)).await;
        }
    }
}

fn refused(verdict: Verdict) -> Answer {
    match verdict {
        Verdict::KeyReused => Answer::KeyReused,
        Verdict::KeyRequired => Answer::KeyRequired,
        Verdict::NotOpen { now, opens_at } => Answer::NotOpen { now, opens_at },
        Verdict::Closed => Answer::Closed,
        Verdict::Paused { message, retry_after } => Answer::Paused { message, retry_after },
        Verdict::Frozen => Answer::Paused { message: None, retry_after: None },
        Verdict::RateLimited(limited) => Answer::RateLimited(limited),
        Verdict::AlreadyOrdered(id) => Answer::AlreadyOrdered(id),
        Verdict::PurchaseLimit { limit } => Answer::PurchaseLimit { limit },
        Verdict::UnknownSku => Answer::UnknownSku,
        Verdict::SoldOut => Answer::SoldOut,
        Verdict::Overloaded => Answer::Overloaded,
        Verdict::NotLoaded | Verdict::Accepted(_) | Verdict::InFlight(_) | Verdict::Settled(_) => {
            Answer::GateUnavailable("the gate does not know the sale".into())
        }
    }
}
