//! From the outbox to the broker. One path with two triggers: the request that was just admitted,
//! and the sweep, for what a dead front left behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};

use crate::domain::{Order, OrderId, SaleId};
use crate::fault::fault;
use crate::gate::Gate;
use crate::queue::{PublishError, Publisher};

/// Marks written in one call, and marks that may wait. What does not fit is not lost: the sweep
/// publishes the order once more.
const MARKS: usize = 500;
const MARKS_WAITING: usize = 20_000;

type Flights = Arc<Mutex<HashMap<OrderId, watch::Receiver<Option<bool>>>>>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Relay {
    publisher: Publisher,
    flights: Flights,
    marks: mpsc::Sender<(SaleId, OrderId)>,
}

impl Relay {
    pub(super) fn new(gate: Gate, publisher: Publisher) -> Self {
        let (marks, inbox) = mpsc::channel(MARKS_WAITING);
        tokio::spawn(mark(gate, inbox));
        Self { publisher, flights: Arc::default(), marks }
    }

    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Starts publishing an order that is in the outbox, or joins the publish that is under way.
    /// The answer is whether the broker has confirmed it; nobody needs to wait for it, and a buyer
    /// who hangs up stops nothing.
    pub fn carry(&self, order: &Order) -> impl Future<Output = bool> + use<> {
        let mut flight = self.flight(order);
        async move {
            match flight.wait_for(Option::is_some).await {
                Ok(confirmed) => *confirmed == Some(true),
                Err(_) => false,
            }
        }
    }

    fn flight(&self, order: &Order) -> watch::Receiver<Option<bool>> {
        let mut flights = self.lock();
        if let Some(flight) = flights.get(&order.id) {
            return flight.clone();
        }
        let (tell, flight) = watch::channel(None);
        flights.insert(order.id, flight.clone());
        drop(flights);
        let (relay, order) = (self.clone(), order.clone());
        tokio::spawn(async move {
            let published = relay.publish(&order).await;
            match &published {
                Ok(()) => {
                    let _ = relay.marks.try_send((order.sale.clone(), order.id));
                }
                Err(error) => {
                    tracing::debug!(order_id = %order.id, %error, "publish left to the sweep");
                }
            }
            metrics::counter!("relay_published_total", "result" => if published.is_ok() { "confirmed" } else { "left" }).increment(1);
            tell.send_replace(Some(published.is_ok()));
            relay.lock().remove(&order.id);
        });
        flight
    }

    async fn publish(&self, order: &Order) -> Result<(), PublishError> {
        fault!("publish.before", return Err(PublishError::Away));
        self.publisher.publish(std::slice::from_ref(order)).await?;
        fault!("confirm.after", return Err(PublishError::Unconfirmed));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<OrderId, watch::Receiver<Option<bool>>>> {
        self.flights.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Tells the outbox what the broker holds, many entries in a call. Ends with the last relay.
async fn mark(gate: Gate, mut inbox: mpsc::Receiver<(SaleId, OrderId)>) {
    let mut buffer = Vec::with_capacity(MARKS);
    while inbox.recv_many(&mut buffer, MARKS).await > 0 {
        let mut sales: HashMap<SaleId, Vec<OrderId>> = HashMap::new();
        for (sale, id) in buffer.drain(..) {
            sales.entry(sale).or_default().push(id);
        }
        for (sale, ids) in sales {
            if let Err(error) = gate.confirmed(&sale, &ids).await {
                tracing::debug!(%sale, %error, "confirms not marked; the sweep will publish again");
            }
        }
    }
}
