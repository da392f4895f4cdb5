//! Compares `admit.lua` and `settle.lua` with a model in Rust, under random users, keys, quantities, pauses and
//! outcomes. Every answer must match the model's, and so must the books at the end.
//!
//! The seed is printed. `DOORBUSTER_SEED=n` repeats a run.

use std::collections::BTreeMap;

use doorbuster::domain::{Attempt, Order, SaleState, Verdict};
use doorbuster::gate::{Gate, Outcome, Settlement};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::support::{Database, World, attempt, sale, verdicts};

#[derive(Debug, PartialEq)]
enum Expected {
    Accepted,
    InFlight(Order),
    Settled(Order),
    KeyReused,
    Paused,
    Limit,
    SoldOut,
}

struct Model {
    left: i64,
    limit: u32,
    paused: bool,
    held: BTreeMap<String, Vec<Order>>,
    in_flight: BTreeMap<doorbuster::domain::OrderId, Order>,
}

impl Model {
    fn expect(&self, attempt: &Attempt) -> Expected {
        let held = self.held.get(attempt.user.as_str()).map(Vec::as_slice).unwrap_or_default();
        // An ended order is still in the list, with no units.
        if let Some(order) = held.iter().find(|order| order.key == attempt.key) {
            if order.fingerprint != attempt.fingerprint {
                return Expected::KeyReused;
            }
            return match self.in_flight.contains_key(&order.id) {
                true => Expected::InFlight(order.clone()),
                false => Expected::Settled(order.clone()),
            };
        }
        if self.paused {
            return Expected::Paused;
        }
        let units: u32 = held.iter().map(|order| order.quantity).sum();
        if units + attempt.quantity > self.limit {
            return Expected::Limit;
        }
        if self.left < i64::from(attempt.quantity) {
            return Expected::SoldOut;
        }
        Expected::Accepted
    }

    fn accept(&mut self, order: &Order) {
        self.left -= i64::from(order.quantity);
        self.held.entry(order.user.to_string()).or_default().push(order.clone());
        self.in_flight.insert(order.id, order.clone());
    }

    fn settle(&mut self, order: &Order, outcome: &Outcome) {
        self.in_flight.remove(&order.id);
        if *outcome == Outcome::Kept {
            return;
        }
        if *outcome == Outcome::Ended {
            let held = self.held.get_mut(order.user.as_str()).into_iter().flatten();
            for held in held.filter(|held| held.id == order.id) {
                self.left += i64::from(std::mem::take(&mut held.quantity));
            }
            return;
        }
        if let Some(held) = self.held.get_mut(order.user.as_str()) {
            held.retain(|other| other.id != order.id);
        }
        if *outcome == Outcome::Replaced(None) {
            self.left += i64::from(order.quantity);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_agree_with_the_model_on_random_input() {
    let seed = std::env::var("DOORBUSTER_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    println!("DOORBUSTER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new(Database::Sqlite).await;
    let gate = Gate::open(world.config().gate()).expect("a gate");
    for limit in [1, 3] {
        let sale = sale(&format!("{}l{limit}", world.name), 60, limit);
        world.load(&gate, &sale).await;
        let mut model =
            Model { left: 60, limit, paused: false, held: BTreeMap::new(), in_flight: BTreeMap::new() };
        for _ in 0..400 {
            step(&gate, &sale.id, &mut model, &mut random).await;
        }
        let gate_sale = gate.describe(&sale.id).await.unwrap().expect("loaded");
        assert_eq!(gate_sale.items[0].left, model.left, "seed {seed}");
        assert_eq!(gate_sale.waiting, model.in_flight.len() as u64, "seed {seed}");
        let mut in_flight: Vec<Order> =
            gate.in_flight(&sale.id).await.unwrap().into_iter().map(|ticket| ticket.order).collect();
        in_flight.sort_by_key(|order| order.id);
        assert_eq!(in_flight, model.in_flight.values().cloned().collect::<Vec<_>>(), "seed {seed}");
    }
}

async fn end(
    gate: &Gate,
    sale: &doorbuster::domain::SaleId,
    model: &mut Model,
    order: &Order,
    outcome: Outcome,
) {
    let settlement = Settlement { id: order.id, user: order.user.clone(), outcome };
    // Twice, because the second call must change nothing.
    for _ in 0..2 {
        gate.settle(sale, std::slice::from_ref(&settlement)).await.unwrap();
    }
    model.settle(order, &settlement.outcome);
}

async fn step(gate: &Gate, sale: &doorbuster::domain::SaleId, model: &mut Model, random: &mut StdRng) {
    match random.random_range(0..20) {
        0 => {
            let (to, from) = if model.paused {
                (SaleState::Open, SaleState::Paused)
            } else {
                (SaleState::Paused, SaleState::Open)
            };
            gate.move_sale(sale, to, &[from]).await.unwrap();
            model.paused = !model.paused;
        }
        1 => {
            // Any order that the model knows, settled or ended or neither.
            let mut all = model.held.values().flatten();
            let Some(order) = all.nth(random.random_range(0..40)).cloned() else { return };
            end(gate, sale, model, &order, Outcome::Ended).await;
        }
        2..=7 => {
            let Some(order) = model.in_flight.values().nth(random.random_range(0..60)).cloned() else {
                return;
            };
            let outcome = match random.random_range(0..4) {
                0 => Outcome::Dropped,
                1 => Outcome::Replaced(None),
                _ => Outcome::Kept,
            };
            end(gate, sale, model, &order, outcome).await;
        }
        _ => {
            let attempts: Vec<Attempt> = (0..random.random_range(1..12))
                .map(|_| {
                    let user = format!("user{}", random.random_range(0..40));
                    let key = format!("key{}", random.random_range(0..3));
                    attempt(sale, &user, Some(&key), random.random_range(1..=model.limit))
                })
                .collect();
            let verdicts = verdicts(gate, sale, &attempts).await;
            for (attempt, verdict) in attempts.iter().zip(verdicts) {
                let expected = model.expect(attempt);
                let agrees = match (&expected, &verdict) {
                    (Expected::Accepted, Verdict::Accepted(order)) => {
                        model.accept(order);
                        order.id == attempt.id
                    }
                    (Expected::InFlight(order), Verdict::InFlight(ticket)) => ticket.order == *order,
                    (Expected::Settled(order), Verdict::Settled(id)) => *id == order.id,
                    (Expected::KeyReused, Verdict::KeyReused)
                    | (Expected::Paused, Verdict::Paused { .. })
                    | (Expected::SoldOut, Verdict::SoldOut) => true,
                    (Expected::Limit, Verdict::AlreadyOrdered(_)) => model.limit == 1,
                    (Expected::Limit, Verdict::PurchaseLimit { limit }) => *limit == model.limit,
                    _ => false,
                };
                assert!(
                    agrees,
                    "the model expects {expected:?}, the gate answered {verdict:?} to {attempt:?}"
                );
            }
        }
    }
}
