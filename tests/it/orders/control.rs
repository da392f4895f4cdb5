//! Live control: each act happens once, is atomic in the gate, and is recorded.

use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::control::{Control, ControlError};
use doorbuster::domain::{
    ActRequest, IdempotencyKey, Millis, Sale, SaleState, Terms, TermsChange, Verdict, Window,
};
use doorbuster::front::Role;
use doorbuster::process::{self, Parts};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::store::ActState;

use crate::support::{
    Answer, Buyer, Database, World, ask_redis, attempt, behind_proxy, id, run, sale, servers, until, verdicts,
};

const LONG: Duration = Duration::from_secs(40);

/// An operator's request with this idempotency key.
pub fn keyed(key: &str) -> ActRequest {
    ActRequest { key: Some(id::<IdempotencyKey>(key)), ..ActRequest::by("operator ada") }
}

/// A world whose one sale is open in gate and database. No front or worker runs.
pub async fn with_open_sale(stock: i64, limit: u32, terms: Terms) -> (World, Parts, Control, Sale) {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = Sale { terms, ..sale(&world.name, stock, limit) };
    world.open_sale(&parts, &sale).await;
    let control = Control::new(parts.gate.clone(), parts.store.clone());
    (world, parts, control, sale)
}

/// Units that the gate can still sell.
pub async fn left(parts: &Parts, sale: &Sale) -> i64 {
    parts.gate.describe(&sale.id).await.unwrap().expect("loaded").items[0].left
}

/// The stock in the database.
async fn stock(parts: &Parts, sale: &Sale) -> i64 {
    parts.store.sale(&sale.id).await.unwrap().expect("a row").items[0].stock
}

pub async fn assert_balanced(parts: &Parts, sale: &Sale) {
    let books = audit(&parts.gate, &parts.store, &sale.id).await.unwrap();
    assert!(books.balances(), "{books:?}");
}

pub async fn admit(parts: &Parts, sale: &Sale, user: &str, key: Option<&str>, quantity: u32) -> Verdict {
    verdicts(&parts.gate, &sale.id, &[attempt(&sale.id, user, key, quantity)]).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restock_happens_once_and_never_removes_units_sold_or_in_flight() {
    let (_world, parts, control, sale) = with_open_sale(2, 2, Terms::default()).await;
    let sku = id("unit");
    for _ in 0..2 {
        let act = control.restock(&sale.id, &sku, 3, &keyed("r1")).await.unwrap();
        assert_eq!(act.state, ActState::Done);
        assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (5, 5));
    }
    let reused = control.restock(&sale.id, &sku, 4, &keyed("r1")).await;
    assert!(matches!(reused, Err(ControlError::KeyReused)), "{reused:?}");
    // Two units are in flight, so no restock may remove them.
    assert!(matches!(admit(&parts, &sale, "ada", Some("k"), 2).await, Verdict::Accepted(_)));
    for _ in 0..2 {
        let refused = control.restock(&sale.id, &sku, -4, &keyed("r2")).await;
        assert!(matches!(&refused, Err(ControlError::Refused(why)) if why.contains("only 3")), "{refused:?}");
        assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (3, 5));
    }
    control.restock(&sale.id, &sku, -3, &keyed("r3")).await.unwrap();
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (0, 2));
    assert_balanced(&parts, &sale).await;
    let unknown = control.restock(&sale.id, &id("other"), 1, &keyed("r4")).await;
    assert!(matches!(unknown, Err(ControlError::UnknownItem)), "{unknown:?}");
    let nothing = control.restock(&sale.id, &sku, 0, &keyed("r5")).await;
    assert!(matches!(nothing, Err(ControlError::Invalid(_))), "{nothing:?}");
    let too_many = control.restock(&sale.id, &sku, 1_000_000_000, &keyed("r6")).await;
    assert!(matches!(too_many, Err(ControlError::Invalid(_))), "{too_many:?}");
    let acts = control.acts(&sale.id, 10).await.unwrap();
    let states: Vec<_> = acts.iter().rev().map(|act| (act.key.as_str(), act.state)).skip(1).collect();
    assert_eq!(states, [("r1", ActState::Done), ("r2", ActState::Refused), ("r3", ActState::Done)]);
    assert_eq!(acts[0].by, "operator ada");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_restocks_all_succeed_while_buyers_buy() {
    let (_world, parts, control, sale) = with_open_sale(50, 1, Terms::default()).await;
    let sku = id("unit");
    let restocks = (0..20_i64).map(|nth| {
        let (control, sale, sku) = (&control, &sale, &sku);
        async move {
            let request = keyed(&format!("r{nth}"));
            until("the restock is done", LONG, async || {
                match control.restock(&sale.id, sku, if nth % 4 == 0 { -1 } else { 2 }, &request).await {
                    Ok(_) => Some(()),
                    Err(ControlError::Busy | ControlError::Store(_)) => None,
                    Err(error) => panic!("{error}"),
                }
            })
            .await;
        }
    });
    let buyers = (0..30).map(|nth| {
        let (parts, sale) = (&parts, &sale);
        async move { admit(parts, sale, &format!("user{nth}"), Some("k"), 1).await }
    });
    let (_, verdicts) =
        tokio::join!(futures_util::future::join_all(restocks), futures_util::future::join_all(buyers));
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Accepted(_))));
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (45, 75));
    assert_balanced(&parts, &sale).await;
}

/// Simulates a process that dies after the act is in the database and before it reaches the gate.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_act_is_finished_before_the_next_one() {
    let (_world, parts, control, sale) = with_open_sale(5, 1, Terms::default()).await;
    let sku = id("unit");
    parts.store.begin_restock(&sale.id, &sku, 4, &keyed("died")).await.unwrap().expect("begun");
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (5, 9));
    control.restock(&sale.id, &sku, -1, &keyed("next")).await.unwrap();
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (8, 8));
    parts.store.begin_restock(&sale.id, &sku, -2, &keyed("died-too")).await.unwrap().expect("begun");
    let limit = TermsChange { limit_per_user: Some(3), ..Default::default() };
    parts
        .store
        .begin_terms_change(&sale.id, &limit, Millis(0), &keyed("change"))
        .await
        .unwrap()
        .expect("begun");
    assert_eq!(control.finish_acts().await.unwrap(), 2);
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (6, 6));
    assert_eq!(parts.gate.describe(&sale.id).await.unwrap().expect("loaded").limit_per_user, 3);
    assert_eq!(control.finish_acts().await.unwrap(), 0);
    assert_balanced(&parts, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_to_a_draft_reach_the_gate_when_it_opens() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let control = Control::new(parts.gate.clone(), parts.store.clone());
    let sale = sale(&world.name, 5, 1);
    control.create(&sale, &ActRequest::by("test")).await.unwrap();
    control.restock(&sale.id, &id("unit"), 3, &keyed("r1")).await.unwrap();
    let refused = control.restock(&sale.id, &id("unit"), -9, &keyed("r2")).await;
    assert!(matches!(refused, Err(ControlError::Refused(_))), "{refused:?}");
    control.restock(&sale.id, &id("unit"), -2, &keyed("r3")).await.unwrap();
    let change = TermsChange { limit_per_user: Some(2), ..Default::default() };
    control.change_terms(&sale.id, &change, &keyed("c")).await.unwrap();
    control.open(&sale.id, &keyed("o")).await.unwrap();
    let gate = parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!((gate.items[0].left, gate.items[0].stock, gate.limit_per_user), (6, 6, 2));
    control.restock(&sale.id, &id("unit"), 1, &keyed("r4")).await.unwrap();
    assert_eq!((left(&parts, &sale).await, stock(&parts, &sale).await), (7, 7));
    assert_balanced(&parts, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_pause_does_not_pause_again() {
    let (_world, parts, control, sale) = with_open_sale(5, 1, Terms::default()).await;
    let message = Some("back at noon".to_owned());
    control.pause(&sale.id, message.clone(), &keyed("p")).await.unwrap();
    let verdict = admit(&parts, &sale, "ada", None, 1).await;
    assert_eq!(verdict, Verdict::Paused { message: message.clone(), retry_after: None });
    control.resume(&sale.id, &keyed("r")).await.unwrap();
    control.pause(&sale.id, message, &keyed("p")).await.unwrap();
    let state = parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    assert_eq!(state, SaleState::Open, "a repeat of the same act changes nothing");
    control.close(&sale.id, &keyed("c")).await.unwrap();
    let resumed = control.resume(&sale.id, &keyed("late")).await;
    assert!(matches!(resumed, Err(ControlError::NotFrom { state: SaleState::Closed, .. })), "{resumed:?}");
    let restocked = control.restock(&sale.id, &id("unit"), 1, &keyed("late-too")).await;
    assert!(matches!(restocked, Err(ControlError::NotFrom { .. })), "{restocked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_can_grow_or_shrink_but_not_close_in_the_past() {
    let (_world, parts, control, sale) = with_open_sale(5, 1, Terms::default()).await;
    let closes = |closes_at| TermsChange { closes_at: Some(closes_at), ..Default::default() };
    let past = control.change_terms(&sale.id, &closes(Some(Millis(5))), &keyed("past")).await;
    assert!(
        matches!(&past, Err(ControlError::Invalid(why)) if why.to_string().contains("close it")),
        "{past:?}"
    );
    let now = parts.gate.clock().await.unwrap();
    let hour = now.plus(Duration::from_secs(3_600));
    control.change_terms(&sale.id, &closes(Some(hour)), &keyed("hour")).await.unwrap();
    let window = Window { opens_at: Millis(0), closes_at: Some(hour) };
    assert_eq!(parts.gate.describe(&sale.id).await.unwrap().expect("loaded").window, window);
    control.change_terms(&sale.id, &closes(None), &keyed("forever")).await.unwrap();
    let later = TermsChange { opens_at: Some(hour), ..Default::default() };
    control.change_terms(&sale.id, &later, &keyed("later")).await.unwrap();
    let verdict = admit(&parts, &sale, "ada", None, 1).await;
    assert!(matches!(verdict, Verdict::NotOpen { opens_at, .. } if opens_at == hour), "{verdict:?}");
    let row = parts.store.sale(&sale.id).await.unwrap().expect("a row");
    assert_eq!(row.sale.window, Window { opens_at: hour, closes_at: None });
    let empty = control.change_terms(&sale.id, &TermsChange::default(), &keyed("empty")).await;
    assert!(matches!(empty, Err(ControlError::Invalid(_))), "{empty:?}");
}

fn admin(sale: &Sale, act: &str) -> String {
    format!("/v1/admin/sales/{}{act}", sale.id)
}

async fn act(operator: &Buyer, path: &str, key: &str, body: &str) -> Answer {
    operator.post(path, &[("idempotency-key", key)], body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_control_a_sale_over_http_and_every_act_is_listed() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&running.parts, &sale).await;
    let operator = Buyer::operator(&running, Role::Operator);
    let restock = r#"{"sku":"unit","units":3,"reason":"found a box"}"#;
    for _ in 0..2 {
        let answer = act(&operator, &admin(&sale, ":restock"), "k1", restock).await;
        assert_eq!(
            (answer.status, answer.json["items"][0]["stock"].as_i64()),
            (200, Some(5)),
            "{}",
            answer.text
        );
        assert_eq!(answer.json["act"]["reason"], "found a box", "{}", answer.text);
    }
    let change = r#"{"user_rate":"1/100s","closes_at":null,"reason":"bots"}"#;
    let answer = act(&operator, &admin(&sale, ":change"), "k2", change).await;
    assert_eq!(answer.json["rules"]["user_rate"], "1/100s", "{}", answer.text);
    let ada = Buyer::of(&running, "ada");
    assert_eq!(ada.buy(sale.id.as_str(), "k").await.status, 202);
    let limited = ada.buy(sale.id.as_str(), "other").await;
    assert_eq!((limited.status, limited.code()), (429, "rate_limited"), "{}", limited.text);
    let wait: u64 = limited.headers["retry-after"].parse().expect("seconds");
    assert!((1..=100).contains(&wait), "{limited:?}");
    assert_eq!(limited.headers["ratelimit-policy"], "\"user\";q=1;w=100");
    assert_eq!(limited.headers["ratelimit"], format!("\"user\";r=0;t={wait}"));
    let paused = r#"{"message":"back at noon","reason":"a phone call"}"#;
    assert_eq!(act(&operator, &admin(&sale, ":pause"), "k3", paused).await.json["state"], "paused");
    let refused = Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    assert_eq!((refused.status, refused.code()), (503, "sale_paused"), "{}", refused.text);
    assert_eq!(refused.json["detail"], "back at noon");

    for (path, key, body, status, code) in [
        (":restock", "k1", r#"{"sku":"unit","units":4}"#, 422, "idempotency_key_reused"),
        (":restock", "k4", r#"{"sku":"unit","units":-9}"#, 409, "act_refused"),
        (":restock", "k5", r#"{"sku":"nothing","units":1}"#, 422, "unknown_sku"),
        (":restock", "k6", r#"{"sku":"unit","units":0}"#, 422, "invalid_sale"),
        (":restock", "k7", r#"{"sku":"unit","units":"two"}"#, 400, "malformed"),
        (":restock", "k7b", r#"{"sku":"unit","units":9223372036854775807}"#, 422, "invalid_sale"),
        (":change", "k8", r#"{"user_rate":"0/1s"}"#, 400, "malformed"),
        (":change", "k9", r#"{"closes_at":"2020-01-01T00:00:00.000Z"}"#, 422, "invalid_sale"),
        (":change", "k10", r#"{"colour":"red"}"#, 400, "malformed"),
        (":change", "k11", "{}", 422, "invalid_sale"),
        (":open", "k12", "", 409, "invalid_transition"),
        (":archive", "k13", "", 409, "invalid_transition"),
        (":close", "k14", r#"{"reason":7}"#, 400, "malformed"),
        (":fly", "k15", "", 404, "not_found"),
    ] {
        let answer = act(&operator, &admin(&sale, path), key, body).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {body}: {}", answer.text);
    }
    let keyless = operator.post(&admin(&sale, ":restock"), &[], restock).await;
    assert_eq!(
        keyless.code(),
        "idempotency_key_required",
        "without a key a repeat would add units twice: {}",
        keyless.text
    );
    let viewer = Buyer::operator(&running, Role::Viewer);
    assert_eq!(act(&viewer, &admin(&sale, ":restock"), "v", restock).await.status, 403);
    let acts = viewer.get(&admin(&sale, "/acts")).await;
    let kinds: Vec<_> =
        acts.json["acts"].as_array().expect("a list").iter().filter_map(|act| act["kind"].as_str()).collect();
    for kind in ["open", "restock", "change", "pause"] {
        assert!(kinds.contains(&kind), "{kind}: {}", acts.text);
    }
    let (code, out, err) = run(Some(&world), &["sale", "acts", sale.id.as_str()]).await;
    assert!(code == 0 && out.contains("found a box") && out.contains("operator op"), "{out}{err}");
    let (code, out, err) =
        run(Some(&world), &["sale", "restock", sale.id.as_str(), "unit", "-1", "--reason", "broken"]).await;
    assert!(code == 0 && out.contains("-1 unit"), "{out}{err}");
    let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await.unwrap();
    assert!(books.balances(), "{books:?}");
    running.stop().await;
}

/// Redis comes back as it was before the restock, and no order has the lost number.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_lost_a_restock_freezes() {
    let (world, parts, control, sale) = with_open_sale(5, 1, Terms::default()).await;
    control.restock(&sale.id, &id("unit"), 2, &keyed("r")).await.unwrap();
    let number = parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    assert_eq!(parts.store.sale(&sale.id).await.unwrap().expect("a row").witnessed, number);
    let key = format!("{}:{{{}}}:sale", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} seq {}", number.seq - 1)).await;
    let fresh = world.parts().await;
    world.compare_books(&fresh).await;
    let state = fresh.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    assert_eq!(state, SaleState::Frozen);
}

/// The front keeps what it knows of a sale for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_opened_is_no_draft_to_any_front() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("intake.sale_cache_ms=60000");
    let front = world.running_as(process::Role::Front).await;
    let sale = sale(&world.name, 4, 1);
    front.control.create(&sale, &keyed("create")).await.unwrap();
    let ada = Buyer::of(&front, "ada");
    let path = format!("/v1/sales/{}", sale.id);
    for _ in 0..3 {
        let draft = ada.get(&path).await;
        assert_eq!((draft.status, draft.code()), (404, "sale_not_found"), "{}", draft.text);
    }
    front.control.open(&sale.id, &keyed("open")).await.unwrap();
    let bought = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(bought.status, 202, "{}", bought.text);
    assert_eq!(ada.get(&path).await.status, 200);
    front.stop().await;
}

/// Three requests queue for the ids of all sales. The first reading fails, and the second finds its sale in the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_the_gate_has_hides_none_that_only_the_database_has() {
    let (mut world, parts, control, loaded) = with_open_sale(4, 1, Terms::default()).await;
    let ended = Sale { id: id(&format!("{}e", world.name)), ..loaded.clone() };
    world.open_sale(&parts, &ended).await;
    control.close(&ended.id, &keyed("close")).await.unwrap();
    control.archive(&ended.id, &keyed("archive")).await.unwrap();
    world.set("redis.timeout_ms=500");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let front = world.running_as(process::Role::Front).await;
    let ask = |sale: &str| {
        let (buyer, path) = (Buyer::of(&front, "ada"), format!("/v1/sales/{sale}"));
        tokio::spawn(async move { buyer.get(&path).await })
    };
    proxy.set(Weather::Frozen);
    let mut asked = Vec::new();
    for sale in ["nobody", loaded.id.as_str(), ended.id.as_str()] {
        asked.push(ask(sale));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut asked = asked.into_iter();
    let first = asked.next().unwrap().await.unwrap();
    assert_eq!(first.status, 503, "{}", first.text);
    proxy.set(Weather::Fair);
    for answer in asked {
        let answer = answer.await.unwrap();
        assert!([200, 503].contains(&answer.status), "{}", answer.text);
    }
    front.stop().await;
}
