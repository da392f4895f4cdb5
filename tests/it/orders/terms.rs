//! The terms of a sale: rates, limits, and buying again after an order has ended.

use std::time::Duration;

use doorbuster::control::Control;
use doorbuster::domain::{Item, Rate, RateOf, Terms, TermsChange, Verdict};
use doorbuster::gate::{Outcome, Settlement};

use crate::orders::control::{admit, assert_balanced, keyed, left, with_open_sale};
use crate::support::{
    Buyer, Database, World, ask_redis, at_rest, attempt, id, sale, servers, two_hours_ago, until, verdicts,
};

const LONG: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn attempts_above_a_rate_are_refused_with_the_time_to_retry() {
    let rate = |text: &str| Some(text.parse::<Rate>().expect("a rate"));
    let terms = Terms { user_rate: rate("3/1000s"), ..Terms::default() };
    let (_world, parts, control, sale) = with_open_sale(100, 10, terms).await;
    let tries = async |user: &str, from: u32, to: u32| {
        let mut passed = 0;
        for nth in from..to {
            match admit(&parts, &sale, user, Some(&format!("k{nth}")), 1).await {
                Verdict::Accepted(_) => passed += 1,
                Verdict::RateLimited(limited) => {
                    assert!(
                        limited.of == RateOf::User && limited.retry_after > Duration::from_secs(200),
                        "{limited:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        passed
    };
    assert_eq!((tries("ada", 0, 6).await, tries("bob", 0, 6).await), (3, 3));
    // A repeat gets its order, whatever the rate.
    let repeat = admit(&parts, &sale, "ada", Some("k0"), 1).await;
    assert!(matches!(repeat, Verdict::InFlight(_)), "{repeat:?}");
    // The rate holds within one call as well as across calls.
    let at_once: Vec<_> = (0..6).map(|nth| attempt(&sale.id, "carl", Some(&format!("k{nth}")), 1)).collect();
    let accepted = verdicts(&parts.gate, &sale.id, &at_once).await;
    assert_eq!(accepted.iter().filter(|verdict| matches!(verdict, Verdict::Accepted(_))).count(), 3);

    let change =
        TermsChange { user_rate: Some(None), sale_rate: Some(rate("4/1000s")), ..Default::default() };
    control.change_terms(&sale.id, &change, &keyed("c")).await.unwrap();
    let mut passed = 0;
    for nth in 0..8 {
        match admit(&parts, &sale, &format!("user{nth}"), Some("k"), 1).await {
            Verdict::Accepted(_) => passed += 1,
            Verdict::RateLimited(limited) => assert!(limited.of == RateOf::Sale, "{limited:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(passed, 4);
    assert_balanced(&parts, &sale).await;
}

/// At thousands of attempts a second, each one is worth a fraction of a millisecond.
#[tokio::test(flavor = "multi_thread")]
async fn a_high_rate_is_enforced_too() {
    let terms = Terms { sale_rate: Some("2000/1s".parse().unwrap()), ..Terms::default() };
    let (_world, parts, _control, sale) = with_open_sale(1_000_000, 1, terms).await;
    let started = std::time::Instant::now();
    let (mut accepted, mut users) = (0_u32, 0..);
    until("the rate is reached", LONG, async || {
        let attempts: Vec<_> = users
            .by_ref()
            .take(400)
            .map(|nth: u32| attempt(&sale.id, &format!("user{nth}"), Some("k"), 1))
            .collect();
        let answers = verdicts(&parts.gate, &sale.id, &attempts).await;
        let passed = answers.iter().filter(|verdict| matches!(verdict, Verdict::Accepted(_))).count();
        accepted += u32::try_from(passed).unwrap();
        (passed < 400).then_some(())
    })
    .await;
    let most = 2_000.0 * (1.0 + started.elapsed().as_secs_f64());
    assert!(accepted >= 2_000 && f64::from(accepted) <= most, "{accepted} of at most {most}");
}

/// Redis's clock decides how much of the rate has come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_recovers_with_time() {
    let terms = Terms { user_rate: Some("2/1s".parse().unwrap()), ..Terms::default() };
    let (_world, parts, _control, sale) = with_open_sale(100, 10, terms).await;
    let started = std::time::Instant::now();
    let mut keys = 0..;
    let mut accepted = 0;
    until("five attempts have passed", LONG, async || {
        let key = format!("k{}", keys.next().expect("an endless range"));
        let verdict = admit(&parts, &sale, "ada", Some(&key), 1).await;
        accepted += u32::from(matches!(verdict, Verdict::Accepted(_)));
        (accepted == 5).then_some(())
    })
    .await;
    // Two pass at once, and then one each half second.
    assert!(started.elapsed() >= Duration::from_millis(1_450), "{:?}", started.elapsed());
}

/// A failover to a host whose clock is an hour behind, as the buckets show it.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_at_a_rate_for_a_clock_that_was_set_back() {
    let rate = |text: &str| Some(text.parse::<Rate>().expect("a rate"));
    let terms = Terms { user_rate: rate("2/1000s"), sale_rate: rate("50/1000s"), ..Terms::default() };
    let (world, parts, _control, sale) = with_open_sale(100, 10, terms).await;
    assert!(matches!(admit(&parts, &sale, "ada", Some("a"), 1).await, Verdict::Accepted(_)));
    let full_at = parts.gate.clock().await.unwrap().0 + 3_600_000;
    let key = format!("{}:{{{}}}:rates", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} ada {full_at} | {full_at}")).await;
    for key in ["b", "c"] {
        let verdict = admit(&parts, &sale, "ada", Some(key), 1).await;
        assert!(matches!(verdict, Verdict::Accepted(_)), "{key}: {verdict:?}");
    }
    // From now on the rate is kept as ever.
    let refused = admit(&parts, &sale, "ada", Some("d"), 1).await;
    assert!(matches!(refused, Verdict::RateLimited(_)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_can_have_its_own_limit_and_limits_count_units() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let mut sale = sale(&world.name, 10, 5);
    sale.items[0].limit_per_user = Some(2);
    sale.items.push(Item { sku: id("other"), stock: 10, limit_per_user: None });
    world.open_sale(&parts, &sale).await;
    assert!(matches!(admit(&parts, &sale, "ada", Some("a"), 2).await, Verdict::Accepted(_)));
    assert_eq!(admit(&parts, &sale, "ada", Some("b"), 1).await, Verdict::PurchaseLimit { limit: 2 });
    let mut other = attempt(&sale.id, "ada", Some("c"), 3);
    other.sku = id("other");
    let fits = verdicts(&parts.gate, &sale.id, &[other.clone()]).await;
    assert!(matches!(fits[0], Verdict::Accepted(_)), "{fits:?}");
    other.id = doorbuster::domain::OrderId::generate();
    other.key = doorbuster::domain::KeyDigest::of_text("d");
    let over = verdicts(&parts.gate, &sale.id, &[other]).await;
    assert_eq!(over, [Verdict::PurchaseLimit { limit: 5 }], "five in all");
    let control = Control::new(parts.gate.clone(), parts.store.clone());
    let limits = TermsChange {
        item_limits: [(id("unit"), Some(3))].into(),
        limit_per_user: Some(9),
        ..Default::default()
    };
    control.change_terms(&sale.id, &limits, &keyed("c")).await.unwrap();
    assert!(matches!(admit(&parts, &sale, "ada", Some("e"), 1).await, Verdict::Accepted(_)));
    assert_eq!(admit(&parts, &sale, "ada", Some("f"), 1).await, Verdict::PurchaseLimit { limit: 3 });
    assert_balanced(&parts, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rebuy_a_user_is_referred_to_their_ended_order() {
    let (_world, parts, _control, sale) =
        with_open_sale(5, 1, Terms { rebuy: false, ..Terms::default() }).await;
    let Verdict::Accepted(order) = admit(&parts, &sale, "ada", Some("k"), 1).await else {
        panic!("not accepted")
    };
    let ended = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Ended };
    parts.gate.settle(&sale.id, &[ended]).await.unwrap();
    assert_eq!(left(&parts, &sale).await, 5, "its unit is on sale again");
    assert_eq!(admit(&parts, &sale, "ada", Some("other"), 1).await, Verdict::AlreadyOrdered(order.id));
    assert_eq!(admit(&parts, &sale, "ada", Some("k"), 1).await, Verdict::Settled(order.id));
    assert!(matches!(admit(&parts, &sale, "bob", Some("k"), 1).await, Verdict::Accepted(_)));
}

/// Each order takes a unit from the others while it lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_ordering_and_cancelling_ends() {
    let (_world, parts, _control, sale) = with_open_sale(5, 1, Terms::default()).await;
    let mut ended = 0;
    let limited = loop {
        match admit(&parts, &sale, "ada", Some(&format!("k{ended}")), 1).await {
            Verdict::Accepted(order) => {
                let end = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Ended };
                parts.gate.settle(&sale.id, &[end]).await.unwrap();
                ended += 1;
                assert!(ended <= 8, "it goes on");
            }
            Verdict::RateLimited(limited) => break limited,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((limited.of, ended), (RateOf::EndedOrders, 8));
    let hour = Duration::from_secs(3_600);
    assert!(limited.retry_after <= hour && limited.retry_after > hour - LONG, "{limited:?}");
    assert!(
        matches!(admit(&parts, &sale, "ada", Some("k7"), 1).await, Verdict::Settled(_)),
        "repeats are answered"
    );
    assert!(matches!(admit(&parts, &sale, "bob", Some("k"), 1).await, Verdict::Accepted(_)));
    // An hour later the user may order again.
    for nth in 0..8 {
        let old = two_hours_ago(attempt(&sale.id, "carl", Some(&format!("k{nth}")), 1));
        let verdict = verdicts(&parts.gate, &sale.id, std::slice::from_ref(&old)).await.remove(0);
        assert!(matches!(verdict, Verdict::Accepted(_)), "{verdict:?}");
        let end = Settlement { id: old.id, user: old.user, outcome: Outcome::Ended };
        parts.gate.settle(&sale.id, &[end]).await.unwrap();
    }
    assert!(matches!(admit(&parts, &sale, "carl", Some("now"), 1).await, Verdict::Accepted(_)));
    assert_balanced(&parts, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_above_its_rate_gets_429() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.address_rate=3/1000s").set("front.address_header=X-Forwarded-For");
    world.set("front.trusted_proxies=127.0.0.0/8");
    let running = world.running().await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&running.parts, &sale).await;
    let path = format!("/v1/sales/{}", sale.id);
    let from = async |address: &str| {
        let at = running.buyers.expect("a front");
        crate::support::request(at, "GET", &path, &[("x-forwarded-for", address)], b"").await
    };
    for _ in 0..3 {
        assert_eq!(from("9.9.9.9, 10.0.0.1").await.status, 200);
    }
    let limited = from("1.2.3.4, 10.0.0.1").await;
    assert_eq!(
        (limited.status, limited.code()),
        (429, "rate_limited"),
        "the last address in the header counts: {}",
        limited.text
    );
    assert!(limited.headers.contains_key("retry-after") && limited.headers.contains_key("ratelimit"));
    assert_eq!(from("10.0.0.2").await.status, 200, "another address");
    assert_eq!(from("1.2.3.4, 10.0.0.1:4711").await.status, 429, "the port does not matter");
    assert_eq!(from("10.0.0.2, 127.0.0.9").await.status, 200, "behind a second proxy of ours");
    // An unreadable header does not evade the rate: the connection's own address counts.
    for _ in 0..3 {
        assert_eq!(from("nobody").await.status, 200);
    }
    assert_eq!(from("nobody").await.status, 429);
    running.stop().await;
}

/// An order is placed under the old limit and repeated after the limit has changed.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_click_gets_the_same_order_after_the_limit_changes() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 9, 3);
    world.open_sale(&running.parts, &sale).await;
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    let limit = |limit| TermsChange { limit_per_user: Some(limit), ..Default::default() };
    let ada = Buyer::of(&running, "ada");
    let orders = format!("/v1/sales/{}/orders", sale.id);
    let buy = async |headers: &[(&str, &str)], body: &str| ada.post(&orders, headers, body).await;
    let first = buy(&[("idempotency-key", "k")], r#"{"quantity":3}"#).await;
    assert_eq!(first.status, 202, "{}", first.text);
    control.change_terms(&sale.id, &limit(1), &keyed("one")).await.unwrap();
    let again = buy(&[("idempotency-key", "k")], r#"{"quantity":3}"#).await;
    assert_eq!(again.order_id(), first.order_id(), "{}", again.text);
    let more = buy(&[("idempotency-key", "l")], r#"{"quantity":2}"#).await;
    assert_eq!((more.status, more.code()), (409, "already_ordered"), "{}", more.text);
    let too_many = Buyer::of(&running, "dora").post(&orders, &[], r#"{"quantity":2}"#).await;
    assert_eq!((too_many.status, too_many.code()), (422, "invalid_quantity"), "{}", too_many.text);

    let bob = Buyer::of(&running, "bob");
    let keyless = bob.post(&orders, &[], "").await;
    assert_eq!(keyless.status, 202, "{}", keyless.text);
    control.change_terms(&sale.id, &limit(2), &keyed("two")).await.unwrap();
    let again = bob.post(&orders, &[], "").await;
    assert_eq!(again.order_id(), keyless.order_id(), "{}", again.text);
    let carl = Buyer::of(&running, "carl").post(&orders, &[], "").await;
    assert_eq!((carl.status, carl.code()), (400, "idempotency_key_required"), "{}", carl.text);
    at_rest(&running, &sale).await;
    running.stop().await;
}
