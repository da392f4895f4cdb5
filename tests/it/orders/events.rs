//! The events of a sale, as a buyer's page reads them.

use std::time::{Duration, Instant};

use doorbuster::domain::{ActRequest, Number};
use doorbuster::front::Role;
use doorbuster::process;
use serde_json::json;

use crate::support::{Buyer, Database, Events, World, buy, request, sale, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_what_a_sale_is_and_each_change_within_seconds() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&running.parts, &sale).await;
    let at = running.buyers.unwrap();
    let mut events = Events::of_sale(at, &sale, None).await;
    assert_eq!(events.status, 200);
    let first = events.next().await;
    assert_eq!(
        (&first.data["state"], &first.data["items"][0]["availability"]),
        (&"open".into(), &"plenty".into())
    );
    let read = Buyer::of(&running, "ada").get(&format!("/v1/sales/{}", sale.id)).await;
    let mut shown = first.data.clone();
    shown["server_time"] = read.json["server_time"].clone();
    assert_eq!(shown, read.json, "an event has what a reading has");

    buy(&running, &sale, 0..9).await;
    let began = Instant::now();
    let few = events.next().await;
    assert_eq!(few.data["items"][0]["availability"], "few");
    buy(&running, &sale, 9..10).await;
    assert_eq!(events.next().await.data["items"][0]["availability"], "gone");
    running
        .control
        .pause(&sale.id, Some("back at noon".into()), &ActRequest::by("operator ada"))
        .await
        .unwrap();
    let paused = events.next().await;
    assert_eq!((&paused.data["state"], &paused.data["message"]), (&"paused".into(), &"back at noon".into()));
    // Three changes, each within a second on a quiet machine.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());

    // Who has the last event hears of the next change only; who has an older one, or a forged one, gets it at once.
    let mut resumed = Events::of_sale(at, &sale, Some(&paused.id)).await;
    for forged in [first.id.as_str(), "'; DROP TABLE sales", "\u{7f}"] {
        let mut other = Events::of_sale(at, &sale, Some(forged)).await;
        if other.status == 200 {
            assert_eq!(other.next().await.id, paused.id, "{forged}");
        }
    }
    running.control.resume(&sale.id, &ActRequest::by("operator ada")).await.unwrap();
    assert_eq!(resumed.next().await.data["state"], "open");

    // The front stops: each stream says when to come back, and ends.
    let stopping = tokio::spawn(running.stop());
    let mut rest = Vec::new();
    while let Some(line) = resumed.line(Duration::from_secs(20)).await {
        rest.push(line);
    }
    assert!(rest.iter().any(|line| line.starts_with("retry: ")), "{rest:?}");
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_an_unknown_sale_has_none() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.event_streams=2");
    let running = world.running().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&running.parts, &sale).await;
    let at = running.buyers.unwrap();
    let path = format!("/v1/sales/{}/events", sale.id);
    let unknown = request(at, "GET", "/v1/sales/no-such-sale/events", &[], b"").await;
    assert_eq!((unknown.status, unknown.code()), (404, "sale_not_found"));
    let (mut one, two) = (Events::of_sale(at, &sale, None).await, Events::of_sale(at, &sale, None).await);
    assert_eq!((one.status, two.status), (200, 200));
    let refused = request(at, "GET", &path, &[], b"").await;
    assert_eq!((refused.status, refused.code()), (503, "too_many_streams"));
    assert!(refused.headers.contains_key("retry-after"));
    // A reader that goes away makes room.
    drop(two);
    until("there is room", Duration::from_secs(30), async || {
        let again = Events::of_sale(at, &sale, None).await;
        (again.status == 200).then_some(())
    })
    .await;
    one.next().await;
    // A stream outlives the limit of a request, and is kept alive by comments.
    let line = one.line(Duration::from_secs(25)).await.expect("a comment");
    assert!(line.starts_with(':'), "{line}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_gets_a_frame_each_second() {
    let mut world = World::new(Database::Postgres).await;
    world.set("gate.rebuild=manual");
    let running = world.running_as(process::Role::Front).await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&running.parts, &sale).await;
    let viewer = Buyer::operator(&running, Role::Viewer);
    let path = format!("/v1/admin/sales/{}/events", sale.id);
    let stranger = Buyer { at: running.operations, ..Buyer::of(&running, "ada") };
    assert_eq!(stranger.get(&path).await.status, 401, "a buyer's token has no right here");
    assert_eq!(viewer.get("/v1/admin/sales/no-such-sale/events").await.code(), "sale_not_found");

    let mut events = Events::of_operator(&viewer, &sale).await;
    assert_eq!(events.status, 200);
    let first = events.next().await;
    let shown = viewer.get(&format!("/v1/admin/sales/{}", sale.id)).await;
    assert_eq!(first.data["sale"], shown.json);
    assert!(first.data.get("sold_per_second").is_none(), "{first:?}");
    let attention = async |events: &mut Events, wanted: &[&str], workers: u32| {
        until(&format!("the frame says {wanted:?}"), Duration::from_secs(60), async || {
            let data = events.next().await.data;
            (data["attention"] == json!(wanted) && data["workers"] == workers).then_some(())
        })
        .await;
    };
    attention(&mut events, &["no_worker"], 0).await;
    let worker = world.running_as(process::Role::Worker).await;
    attention(&mut events, &[], 1).await;
    let began = Instant::now();
    buy(&running, &sale, 0..9).await;
    let (mut sold, mut recorded) = (0.0, 0.0);
    let mut frames: u64 = 0;
    while sold == 0.0 || recorded == 0.0 {
        let frame = events.next().await;
        frames += 1;
        sold += frame.data["sold_per_second"].as_f64().expect("a rate");
        recorded += frame.data["recorded_per_second"].as_f64().expect("a rate");
        assert!(frames < 60, "{frame:?}");
    }
    // A second lies between two frames. The first of them was on its way when the buyers began.
    assert!(began.elapsed() > Duration::from_secs(frames.saturating_sub(2)), "{frames} frames");
    let frame = events.next().await;
    assert_eq!(frame.data["sale"]["items"][0]["left"], 1, "{frame:?}");
    assert_eq!(frame.data["attention"], json!([]), "{frame:?}");
    let lost = Number { epoch: 1, seq: 1_000_000 };
    assert!(running.parts.gate.freeze_if_behind(&sale.id, lost).await.unwrap());
    attention(&mut events, &["needs_rebuild"], 1).await;
    worker.stop().await;
    running.stop().await;
}
