//! From the outbox to the broker. One path with two triggers: the request that was just admitted,
//! and the sweep, for what a dead front left behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};

use crate::domain::{Order, OrderId, SaleId};
use crate::fault::fault;
use crate::gate::Gate;
use crate::link::{Gather, call_together};
use crate::queue::{PublishError, Publisher};

/// Orders in one message: a queue takes twenty thousand messages a second, however much they carry. What
/// waits together goes together, and a lone order does not wait.
const TOGETHER: usize = 128;
/// Messages under way at once. More would only make them smaller.
const UNDER_WAY: usize = 4;
/// Orders that may wait for a place in a message; the others are left to the sweep.
const WAITING: usize = 100_000;

/// Marks written in one call, and marks that may wait. What does not fit is not lost: the sweep
/// publishes the order once more.
const MARKS: usize = 1_000;
/// How long marks wait for others: far shorter than the sweep's grace.
const MARK_AFTER: Duration = Duration::from_millis(100);
const MARKS_WAITING: usize = 20_000;

type Flights = Arc<Mutex<HashMap<OrderId, watch::Receiver<Option<bool>>>>>;

/// An order that waits to be published, and those who wait for that.
struct Passenger {
    order: Order,
    tell: watch::Sender<Option<bool>>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Relay {
    publisher: Publisher,
    flights: Flights,
    passengers: mpsc::Sender<Passenger>,
}

impl Relay {
    pub(super) fn new(gate: Gate, publisher: Publisher) -> Self {
        let (marks, inbox) = mpsc::channel(MARKS_WAITING);
        let flights = Flights::default();
        tokio::spawn(mark(gate, inbox, flights.clone()));
        let (passengers, waiting) = mpsc::channel(WAITING);
        let carrier = Carrier { publisher: publisher.clone(), flights: flights.clone(), marks };
        tokio::spawn(carrier.run(waiting));
        Self { publisher, flights, passengers }
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
        let mut flights = lock(&self.flights);
        // One that ended without a word, by a fault of ours, is begun anew.
        if let Some(flight) = flights.get(&order.id)
            && (flight.borrow().is_some() || flight.has_changed().is_ok())
        {
            return flight.clone();
        }
        let (tell, flight) = watch::channel(None);
        // A broker that is away, blocked or silent takes nothing: nobody should wait for a place in a message
        // then. What does not fit is told `false` when `tell` is dropped.
        if self.publisher.is_up()
            && self.passengers.try_send(Passenger { order: order.clone(), tell }).is_ok()
        {
            flights.insert(order.id, flight.clone());
        }
        flight
    }
}

fn lock(flights: &Flights) -> MutexGuard<'_, HashMap<OrderId, watch::Receiver<Option<bool>>>> {
    flights.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Publishes what waits, many orders in a message.
#[derive(Clone)]
struct Carrier {
    publisher: Publisher,
    flights: Flights,
    marks: mpsc::Sender<(SaleId, OrderId)>,
}

impl Carrier {
    /// Ends with the last relay.
    async fn run(self, mut waiting: mpsc::Receiver<Passenger>) {
        let places = Arc::new(Semaphore::new(UNDER_WAY));
        let mut gather = Gather::default();
        loop {
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = self.publisher.wait_until_down() => {
                    // Those who wait for a place are not to wait for the broker.
                    while let Ok(passenger) = waiting.try_recv() {
                        lock(&self.flights).remove(&passenger.order.id);
                        passenger.tell.send_replace(Some(false));
                    }
                    tokio::select! {
                        place = places.clone().acquire_owned() => place,
                        () = self.publisher.wait_until_up() => continue,
                    }
                }
            };
            let Ok(place) = place else { return };
            let together = gather.next(&mut waiting, TOGETHER).await;
            if together.is_empty() {
                return;
            }
            let carrier = self.clone();
            tokio::spawn(async move {
                carrier.carry(together).await;
                drop(place);
            });
        }
    }

    async fn carry(&self, passengers: Vec<Passenger>) {
        let (orders, waiting): (Vec<Order>, Vec<_>) =
            passengers.into_iter().map(|passenger| (passenger.order, passenger.tell)).unzip();
        let published = self.publish(&orders).await;
        let result = if published.is_ok() { "confirmed" } else { "left" };
        metrics::counter!("relay_published_total", "result" => result).increment(orders.len() as u64);
        if let Err(error) = &published {
            tracing::debug!(orders = orders.len(), %error, "publish left to the sweep");
        }
        for tell in waiting {
            tell.send_replace(Some(published.is_ok()));
        }
        for order in orders {
            // Until the outbox says it, a repeat is told from here that the broker has it.
            let id = order.id;
            if published.is_err() || self.marks.try_send((order.sale, id)).is_err() {
                lock(&self.flights).remove(&id);
            }
        }
    }

    async fn publish(&self, orders: &[Order]) -> Result<(), PublishError> {
        fault!("publish.before", return Err(PublishError::Away));
        let begun = Instant::now();
        self.publisher.publish(orders).await?;
        metrics::histogram!("relay_confirm_seconds").record(begun.elapsed());
        fault!("confirm.after", return Err(PublishError::Unconfirmed));
        Ok(())
    }
}

/// Tells the outbox what the broker holds, many entries in a call. There is no hurry: what gets its row
/// meanwhile needs no mark. Ends with the last relay.
async fn mark(gate: Gate, mut inbox: mpsc::Receiver<(SaleId, OrderId)>, flights: Flights) {
    let mut buffer = Vec::with_capacity(MARKS);
    while inbox.recv_many(&mut buffer, MARKS).await > 0 {
        if buffer.len() < MARKS {
            tokio::time::sleep(MARK_AFTER).await;
            while buffer.len() < MARKS
                && let Ok(next) = inbox.try_recv()
            {
                buffer.push(next);
            }
        }
        let mut sales: HashMap<SaleId, Vec<OrderId>> = HashMap::new();
        for (sale, id) in buffer.drain(..) {
            sales.entry(sale).or_default().push(id);
        }
        let (gate, flights) = (&gate, &flights);
        let marking = sales.into_iter().map(|(sale, ids)| async move {
            if let Err(error) = gate.mark_confirmed(&sale, &ids).await {
                tracing::debug!(%sale, %error, "confirms not marked; the sweep will publish again");
            }
            let mut flights = lock(flights);
            for id in ids {
                flights.remove(&id);
            }
        });
        call_together(marking).await;
    }
}
