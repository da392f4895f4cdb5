//! The gate against a real Redis.

use std::time::Duration;

use doorbuster::domain::{Durability, Millis, Number, SaleState, Verdict, Window};
use doorbuster::gate::{Gate, GateError, Loaded, Moved, Outcome, Settlement, Versions};

use crate::support::{Database, World, attempt, sale, two_hours_ago, until, verdicts};

async fn opened(stock: i64, limit: u32) -> (World, Gate, doorbuster::domain::Sale) {
    let world = World::new(Database::Sqlite).await;
    let gate = Gate::open(world.config().gate()).expect("a gate");
    let sale = sale(&world.name, stock, limit);
    world.load(&gate, &sale).await;
    (world, gate, sale)
}

async fn left(gate: &Gate, sale: &doorbuster::domain::Sale) -> i64 {
    gate.describe(&sale.id).await.unwrap().expect("loaded").items[0].left
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_unit_goes_to_one_of_two_racing_users() {
    let (_world, gate, sale) = opened(1, 1).await;
    let (a, b) = tokio::join!(
        gate.admit(attempt(&sale.id, "ada", None, 1)),
        gate.admit(attempt(&sale.id, "bob", None, 1))
    );
    let mut verdicts = [a.unwrap(), b.unwrap()];
    verdicts.sort_by_key(|verdict| matches!(verdict, Verdict::SoldOut));
    assert!(matches!(verdicts, [Verdict::Accepted(_), Verdict::SoldOut]), "{verdicts:?}");
    assert_eq!(left(&gate, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_its_order_even_when_all_is_sold() {
    let (_world, gate, sale) = opened(1, 1).await;
    let Verdict::Accepted(order) = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap() else {
        panic!("not accepted")
    };
    let Verdict::InFlight(ticket) = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap() else {
        panic!("not a repeat")
    };
    assert_eq!(ticket.order, order);
    assert_eq!(ticket.durability, Durability::Outbox);
    let other_key = gate.admit(attempt(&sale.id, "ada", Some("l"), 1)).await.unwrap();
    assert_eq!(other_key, Verdict::AlreadyOrdered(order.id));
    assert_eq!(gate.admit(attempt(&sale.id, "bob", None, 1)).await.unwrap(), Verdict::SoldOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_reused_for_another_body_is_refused_and_the_limit_counts_units() {
    let (_world, gate, sale) = opened(9, 3).await;
    gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap();
    assert_eq!(gate.admit(attempt(&sale.id, "ada", Some("k"), 2)).await.unwrap(), Verdict::KeyReused);
    let fits = gate.admit(attempt(&sale.id, "ada", Some("l"), 2)).await.unwrap();
    assert!(matches!(fits, Verdict::Accepted(_)), "{fits:?}");
    let over = gate.admit(attempt(&sale.id, "ada", Some("m"), 1)).await.unwrap();
    assert_eq!(over, Verdict::PurchaseLimit { limit: 3 });
    assert_eq!(left(&gate, &sale).await, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_entry_says_that_the_broker_has_it_and_a_settled_one_is_gone() {
    let (_world, gate, sale) = opened(2, 1).await;
    let Verdict::Accepted(order) = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap() else {
        panic!("not accepted")
    };
    gate.mark_confirmed(&sale.id, &[order.id]).await.unwrap();
    let ticket = gate.ticket(&sale.id, order.id).await.unwrap().expect("in flight");
    assert_eq!(ticket.durability, Durability::Broker);
    let settlement = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Kept };
    for _ in 0..2 {
        gate.settle(&sale.id, std::slice::from_ref(&settlement)).await.unwrap();
    }
    assert_eq!(gate.ticket(&sale.id, order.id).await.unwrap(), None);
    let repeat = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap();
    assert_eq!(repeat, Verdict::Settled(order.id));
    // A mark must not bring a settled entry back.
    gate.mark_confirmed(&sale.id, &[order.id]).await.unwrap();
    assert_eq!(gate.describe(&sale.id).await.unwrap().expect("loaded").waiting, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_for_stock_frees_the_user_and_returns_no_unit() {
    let (_world, gate, sale) = opened(5, 1).await;
    let Verdict::Accepted(order) = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap() else {
        panic!("not accepted")
    };
    let settlement = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Dropped };
    for _ in 0..2 {
        gate.settle(&sale.id, std::slice::from_ref(&settlement)).await.unwrap();
    }
    assert_eq!(left(&gate, &sale).await, 4);
    let again = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap();
    assert!(matches!(again, Verdict::Accepted(_)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_winner_takes_the_losers_place_and_a_unit_returns_only_if_it_was_counted_twice() {
    let (_world, gate, sale) = opened(5, 2).await;
    let accept = async |user: &str, key: &str| match gate
        .admit(attempt(&sale.id, user, Some(key), 1))
        .await
        .unwrap()
    {
        Verdict::Accepted(order) => order,
        other => panic!("{other:?}"),
    };
    // The gate knows both: the loser's unit returns.
    let (winner, loser) = (accept("ada", "k").await, accept("ada", "l").await);
    let replace = |loser: &doorbuster::domain::Order, winner: &doorbuster::domain::Order| Settlement {
        id: loser.id,
        user: loser.user.clone(),
        outcome: Outcome::Replaced(Some(Box::new(winner.clone()))),
    };
    for _ in 0..2 {
        gate.settle(&sale.id, &[replace(&loser, &winner)]).await.unwrap();
    }
    assert_eq!(left(&gate, &sale).await, 4);
    assert_eq!(gate.orders_of(&sale.id, &winner.user).await.unwrap(), [winner.id]);
    // The gate does not know the winner, which takes over the loser's unit.
    let loser = accept("bob", "k").await;
    let forgotten =
        attempt(&sale.id, "bob", Some("z"), 1).admitted(Number { epoch: 0, seq: 1 }, 2, Millis(0));
    for _ in 0..2 {
        gate.settle(&sale.id, &[replace(&loser, &forgotten)]).await.unwrap();
    }
    assert_eq!(left(&gate, &sale).await, 3);
    assert_eq!(gate.orders_of(&sale.id, &loser.user).await.unwrap(), [forgotten.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_sale_is_never_overwritten() {
    let (_world, gate, mut sale) = opened(1, 1).await;
    gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap();
    sale.items[0].stock = 100;
    let loaded = gate.load(&sale, &Versions::default()).await.unwrap();
    assert!(matches!(loaded, Loaded::Already(SaleState::Open, Number { epoch: 1, .. })), "{loaded:?}");
    assert_eq!(left(&gate, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_sale_and_a_missing_item_are_not_zero_stock() {
    let (_world, gate, sale) = opened(1, 1).await;
    let mut unknown = attempt(&sale.id, "ada", None, 1);
    unknown.sku = crate::support::id("other");
    assert_eq!(gate.admit(unknown).await.unwrap(), Verdict::UnknownSku);
    let nowhere = crate::support::id("nowhere");
    assert_eq!(gate.admit(attempt(&nowhere, "ada", None, 1)).await.unwrap(), Verdict::NotLoaded);
    assert!(matches!(gate.move_sale(&nowhere, SaleState::Paused, &[]).await, Err(GateError::NotLoaded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn state_and_window_are_judged_by_the_gates_clock() {
    let (world, gate, sale) = opened(9, 1).await;
    let verdict = async |user: &str| gate.admit(attempt(&sale.id, user, None, 1)).await.unwrap();
    assert!(matches!(
        gate.move_sale(&sale.id, SaleState::Paused, &[SaleState::Open]).await.unwrap(),
        Moved::Now(_)
    ));
    assert!(matches!(
        gate.move_sale(&sale.id, SaleState::Paused, &[SaleState::Open]).await.unwrap(),
        Moved::Already(_)
    ));
    assert!(matches!(verdict("ada").await, Verdict::Paused { .. }));
    gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Paused]).await.unwrap();
    assert!(matches!(verdict("ada").await, Verdict::Accepted(_)));
    gate.move_sale(&sale.id, SaleState::Closed, &[SaleState::Open]).await.unwrap();
    assert_eq!(verdict("bob").await, Verdict::Closed);
    let refused = gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Paused]).await.unwrap();
    assert_eq!(refused, Moved::Refused(SaleState::Closed));

    let mut later = crate::support::sale(&format!("{}later", world.name), 9, 1);
    let opens_at = Millis::now().plus(Duration::from_secs(2));
    later.window = Window { opens_at, closes_at: Some(opens_at.plus(Duration::from_secs(1))) };
    world.load(&gate, &later).await;
    let early = gate.admit(attempt(&later.id, "ada", None, 1)).await.unwrap();
    assert!(
        matches!(early, Verdict::NotOpen { opens_at: at, now } if at == opens_at && now < at),
        "{early:?}"
    );
    let mut nth = 0;
    until("the window opens without a call, and not early", Duration::from_secs(10), async || {
        nth += 1;
        match gate.admit(attempt(&later.id, &format!("user{nth}"), None, 1)).await.unwrap() {
            Verdict::Accepted(order) => {
                assert!(order.accepted_at >= opens_at);
                Some(())
            }
            _ => None,
        }
    })
    .await;
    until("the window closes without a call", Duration::from_secs(10), async || {
        nth += 1;
        let verdict = gate.admit(attempt(&later.id, &format!("user{nth}"), None, 1)).await.unwrap();
        gate.describe(&later.id).await.unwrap().filter(|_| matches!(verdict, Verdict::Closed))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_behind_its_callers_freezes_and_sells_nothing() {
    let (_world, gate, sale) = opened(9, 1).await;
    let Verdict::Accepted(order) = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap() else {
        panic!("not accepted")
    };
    gate.observe_number(&sale.id, Number { epoch: 1, seq: order.number.seq + 1 });
    assert_eq!(gate.admit(attempt(&sale.id, "bob", None, 1)).await.unwrap(), Verdict::Frozen);
    let state = gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    assert_eq!(state, SaleState::Frozen);
    let repeat = gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap();
    assert!(matches!(repeat, Verdict::InFlight(_)), "the buyer still gets their order: {repeat:?}");
    let settlement = Settlement { id: order.id, user: order.user, outcome: Outcome::Kept };
    assert!(matches!(gate.settle(&sale.id, &[settlement]).await, Err(GateError::Frozen)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_scripts_gets_them_again() {
    let (_world, gate, sale) = opened(2, 1).await;
    assert!(matches!(gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap(), Verdict::Accepted(_)));
    let client = redis::Client::open(crate::support::servers().redis.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
    assert!(matches!(gate.admit(attempt(&sale.id, "bob", None, 1)).await.unwrap(), Verdict::Accepted(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_outbox_refuses_and_takes_nothing() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.outbox_bound=100");
    let gate = Gate::open(world.config().gate()).expect("a gate");
    let sale = sale(&world.name, 1_000, 1);
    world.load(&gate, &sale).await;
    let attempts: Vec<_> = (0..120).map(|nth| attempt(&sale.id, &format!("user{nth}"), None, 1)).collect();
    let verdicts = verdicts(&gate, &sale.id, &attempts).await;
    let overloaded = verdicts.iter().filter(|verdict| **verdict == Verdict::Overloaded).count();
    assert_eq!(overloaded, 20);
    assert_eq!(left(&gate, &sale).await, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_claims_a_due_entry_once_per_spacing() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.grace_ms=100");
    let gate = Gate::open(world.config().gate()).expect("a gate");
    let sale = sale(&world.name, 10, 1);
    world.load(&gate, &sale).await;
    gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap();
    let spacing = Duration::from_secs(600);
    let due = until("the entry is due", Duration::from_secs(10), async || {
        let due = gate.claim_due(&sale.id, 10, spacing).await.unwrap();
        (!due.is_empty()).then_some(due)
    })
    .await;
    assert_eq!(due.len(), 1);
    assert_eq!(gate.claim_due(&sale.id, 10, spacing).await.unwrap(), []);
    assert_eq!(gate.in_flight(&sale.id).await.unwrap(), due);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_redis_means_that_nothing_was_taken() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.url=redis://127.0.0.1:1");
    let gate = Gate::open(world.config().gate()).expect("a gate");
    let error = gate.admit(attempt(&crate::support::id("s"), "ada", None, 1)).await.expect_err("no Redis");
    assert!(matches!(error, GateError::Unavailable(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_order_returns_its_units_once_and_is_kept_for_repeats() {
    let (_world, gate, sale) = opened(1, 1).await;
    let mut first = None;
    for nth in 0..12 {
        let key = format!("k{nth}");
        let verdict = gate.admit(two_hours_ago(attempt(&sale.id, "ada", Some(&key), 1))).await.unwrap();
        let Verdict::Accepted(order) = verdict else { panic!("{nth}: {verdict:?}") };
        let ended = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Ended };
        for _ in 0..2 {
            gate.settle(&sale.id, std::slice::from_ref(&ended)).await.unwrap();
            assert_eq!(left(&gate, &sale).await, 1);
        }
        // The same key gets the ended order again.
        let again = gate.admit(attempt(&sale.id, "ada", Some(&key), 1)).await.unwrap();
        assert_eq!(again, Verdict::Settled(order.id));
        first.get_or_insert(order);
    }
    assert_eq!(gate.orders_of(&sale.id, &first.expect("one").user).await.unwrap().len(), 8);
    let keyless = async || gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap();
    let Verdict::Accepted(order) = keyless().await else { panic!("not accepted") };
    let ended = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Ended };
    gate.settle(&sale.id, &[ended]).await.unwrap();
    assert!(matches!(keyless().await, Verdict::Accepted(_)), "a click without a key is a new order");
    let other = gate.admit(attempt(&sale.id, "ada", Some("another"), 1)).await.unwrap();
    assert!(matches!(other, Verdict::AlreadyOrdered(id) if id != order.id), "{other:?}");
}

/// The gate keeps a live order however many of its user's orders have ended.
#[tokio::test(flavor = "multi_thread")]
async fn ended_orders_do_not_evict_a_live_one() {
    let (_world, gate, sale) = opened(5, 2).await;
    let admit = async |key: &str| {
        let verdict = gate.admit(two_hours_ago(attempt(&sale.id, "ada", Some(key), 1))).await.unwrap();
        let Verdict::Accepted(order) = verdict else { panic!("{verdict:?}") };
        order
    };
    let live = admit("live").await;
    for nth in 0..12 {
        let order = admit(&format!("k{nth}")).await;
        let ended = Settlement { id: order.id, user: order.user, outcome: Outcome::Ended };
        gate.settle(&sale.id, &[ended]).await.unwrap();
    }
    let held = gate.orders_of(&sale.id, &live.user).await.unwrap();
    assert!(held.contains(&live.id) && held.len() == 9, "{held:?}");
    let ended = Settlement { id: live.id, user: live.user, outcome: Outcome::Ended };
    gate.settle(&sale.id, &[ended]).await.unwrap();
    assert_eq!(left(&gate, &sale).await, 5);
}
