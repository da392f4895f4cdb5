//! A case in which every promise was kept, and for each rule a mistake that it must catch.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::RULES;
use crate::rehearsal::judge::books::{Books, ChangeRow, GateBooks, ItemRow, OrderRow, PaymentRow};
use crate::rehearsal::judge::call::{Answer, Ask, Call};
use crate::rehearsal::judge::case::{Case, Intent, OperatorAct, Outage, Sale, Webhook};
use crate::rehearsal::judge::judgement::judge;
use crate::rehearsal::judge::rule::Kind;

/// Ada pays, bob never pays, carol cancels and dave finds that all is sold out.
const ADA: Uuid = Uuid::from_u128(1);
const BOB: Uuid = Uuid::from_u128(2);
const CAROL: Uuid = Uuid::from_u128(3);

/// A call from one time to another, with its status and code.
fn call(at: (i64, i64), user: &str, ask: Ask, (status, code): (u16, &str)) -> Call {
    let answer = Answer { status: Some(status), code: code.to_owned(), ..Answer::default() };
    Call { from_ms: at.0, to_ms: at.1, user: user.to_owned(), ask, answer }
}

fn buy(at: (i64, i64), user: &str, status: u16, code: &str, order: Option<Uuid>) -> Call {
    let ask = Ask::Buy { key: "click".into(), sku: "unit".into(), quantity: 1 };
    let mut call = call(at, user, ask, (status, code));
    call.answer.order = order;
    call
}

fn read(at: (i64, i64), user: &str, order: Uuid, state: &str) -> Call {
    call(at, user, Ask::Read { order }, (200, state))
}

fn follow(at: (i64, i64), user: &str, order: Uuid, state: &str) -> Call {
    call(at, user, Ask::Follow { order }, (200, state))
}

fn said(at_ms: i64, order: Uuid, version: i64, state: &str) -> Webhook {
    Webhook { at_ms, order, version, state: state.to_owned() }
}

fn change(order: Uuid, version: i64, from: &str, to: &str, at_ms: i64) -> ChangeRow {
    ChangeRow { order, version, from: from.to_owned(), to: to.to_owned(), at_ms }
}

fn books() -> Books {
    let row = |id, user: &str, status: &str| OrderRow {
        id,
        user: user.to_owned(),
        sku: "unit".into(),
        quantity: 1,
        status: status.to_owned(),
        accepted_at_ms: 1_001,
        recorded_at_ms: 1_010,
    };
    let one = |count| std::iter::once(("unit".to_owned(), count)).collect();
    Books {
        orders: vec![row(ADA, "ada", "paid"), row(BOB, "bob", "expired"), row(CAROL, "carol", "cancelled")],
        changes: vec![
            change(ADA, 2, "confirmed", "paid", 1_030),
            change(BOB, 2, "confirmed", "expired", 5_020),
            change(CAROL, 2, "confirmed", "cancelled", 1_300),
        ],
        payments: vec![PaymentRow {
            event: "evt".into(),
            order: ADA,
            state: "applied".into(),
            new_order: None,
        }],
        items: vec![ItemRow { sku: "unit".into(), stock: 3, sold: 1 }],
        returning: 0,
        acts: ["open", "restock", "pause", "resume", "close"].map(str::to_owned).to_vec(),
        webhooks_waiting: 0,
        gate: GateBooks { left: one(2), stock: one(3), held: std::iter::once((ADA, 1)).collect(), outbox: 0 },
    }
}

fn kept() -> Case {
    Case {
        sale: Sale {
            id: "s".into(),
            items: [("unit".to_owned(), 2)].into(),
            limit: 1,
            pay_within_ms: Some(4_000),
            rebuy: false,
        },
        intents: vec![(ADA, Intent::Pays), (BOB, Intent::NeverPays), (CAROL, Intent::Cancels)],
        acts: vec![OperatorAct {
            from_ms: 1_000,
            to_ms: 1_001,
            act: "restock".into(),
            answer: "done".into(),
            units: 1,
            perhaps: 0,
            sku: "unit".into(),
        }],
        outages: vec![Outage {
            from_ms: 3_000,
            to_ms: 3_001,
            fault: "reset".into(),
            missed: None,
            loses: None,
            may_undo: None,
        }],
        healed_at_ms: 4_000,
        rest_at_ms: 12_000,
        books: books(),
        webhooks: Some(vec![
            said(1_012, ADA, 1, "confirmed"),
            said(1_012, BOB, 1, "confirmed"),
            said(1_013, CAROL, 1, "confirmed"),
            said(1_040, ADA, 2, "paid"),
            said(1_041, ADA, 2, "paid"),
            said(1_310, CAROL, 2, "cancelled"),
            said(5_030, BOB, 2, "expired"),
        ]),
        sale_webhooks: Some(
            ["opened", "paused", "resumed", "sold_out", "closed", "closed"].map(str::to_owned).to_vec(),
        ),
        calls: vec![
            buy((1_000, 1_004), "ada", 202, "accepted", Some(ADA)),
            buy((1_000, 1_004), "bob", 202, "accepted", Some(BOB)),
            buy((1_000, 1_004), "carol", 202, "accepted", Some(CAROL)),
            read((1_006, 1_008), "ada", ADA, "accepted"),
            buy((1_050, 1_052), "dave", 409, "sold_out", None),
            call((1_020, 1_031), "ada", Ask::Pay { order: ADA, event: "evt".into() }, (200, "applied")),
            call((1_290, 1_301), "carol", Ask::Cancel { order: CAROL }, (200, "cancelled")),
            follow((1_005, 1_007), "ada", ADA, "accepted"),
            follow((1_007, 1_012), "ada", ADA, "confirmed"),
            follow((1_012, 1_040), "ada", ADA, "paid"),
            read((12_001, 12_003), "ada", ADA, "paid"),
            read((12_001, 12_003), "bob", BOB, "expired"),
            read((12_001, 12_003), "carol", CAROL, "cancelled"),
        ],
    }
}

type Plant = fn(&mut Case);

/// The rules, each with a mistake that it must catch.
const PLANTED: &[(&str, Plant)] = &[
    ("no-unit-twice", |case| case.books.items[0].stock = 0),
    ("limit", |case| {
        let second = OrderRow { id: Uuid::from_u128(4), ..case.books.orders[0].clone() };
        case.books.orders.push(second);
    }),
    ("conservation", |case| *case.books.gate.left.get_mut("unit").unwrap() -= 1),
    ("stock-follows-acts", |case| case.books.items[0].stock += 1),
    ("accepted-is-kept", |case| drop(case.books.orders.remove(1))),
    ("ends-readable", |case| {
        let last = case.calls.len() - 1;
        case.calls[last].answer =
            Answer { status: Some(503), code: "status_unavailable".into(), ..Answer::default() };
    }),
    ("no-404-after-202", |case| {
        case.calls.push(call((1_009, 1_011), "bob", Ask::Read { order: BOB }, (404, "order_not_found")));
    }),
    ("same-click-same-order", |case| case.calls.push(buy((1_100, 1_104), "ada", 200, "repeat", Some(BOB)))),
    ("no-way-back", |case| case.calls.push(read((1_040, 1_044), "ada", ADA, "confirmed"))),
    ("sold-out-is-true", |case| case.calls.push(buy((900, 902), "erin", 409, "sold_out", None))),
    ("refusal-is-true", |case| case.calls.push(buy((1_050, 1_052), "erin", 409, "sale_closed", None))),
    ("linearizable", |case| case.calls.push(buy((1_100, 1_104), "ada", 409, "sold_out", None))),
    ("paid-stays-paid", |case| case.books.orders[0].status = "expired".into()),
    ("money-is-named", |case| {
        let lost = PaymentRow { event: "other".into(), order: BOB, ..case.books.payments[0].clone() };
        case.books.payments.push(lost);
    }),
    ("in-time-is-in-time", |case| case.calls[5].answer.code = "late".into()),
    ("never-expired-early", |case| case.books.changes[1].at_ms = 1_020),
    ("payment-counts-once", |case| {
        let second = PaymentRow { event: "other".into(), ..case.books.payments[0].clone() };
        case.books.payments.push(second);
    }),
    ("path-of-arrows", |case| case.books.changes[1].from = "paid".into()),
    ("somebody-asked", |case| case.intents[2].1 = Intent::NeverPays),
    ("at-rest", |case| case.books.gate.outbox = 1),
    ("stream-shows-all", |case| drop(case.calls.remove(8))),
    ("webhooks-say-all", |case| drop(case.webhooks.as_mut().unwrap().remove(6))),
    ("webhooks-say-how-it-ended", |case| case.sale_webhooks.as_mut().unwrap().truncate(4)),
    ("sold-enough", |case| {
        for nth in 0..10 {
            case.calls.push(buy((1_050, 1_052), &format!("user-{nth}"), 503, "overloaded", None));
        }
        case.sale.items = [("unit".to_owned(), 14)].into();
    }),
    ("paid-enough", |case| case.calls[5].answer.code = "late".into()),
    ("read-enough", |case| {
        for _ in 0..10 {
            let ask = Ask::Read { order: ADA };
            case.calls.push(call((1_006, 1_008), "ada", ask, (503, "status_unavailable")));
        }
    }),
    ("shown-soon", |case| case.calls[9].to_ms = 11_100),
    ("rest-soon", |case| case.rest_at_ms = 30_000),
    ("sells-on", |case| {
        case.sale.items = [("unit".to_owned(), 100)].into();
        for nth in 0..10 {
            let at = 30_000 + 1_000 * nth;
            case.calls.push(buy((at, at + 2), &format!("user-{nth}"), 503, "overloaded", None));
        }
    }),
    ("sells-again", |case| {
        case.sale.items = [("unit".to_owned(), 100)].into();
        case.outages.push(Outage { from_ms: 30_000, to_ms: 90_000, ..case.outages[0].clone() });
        for nth in 0..10 {
            let at = 30_000 + 6_000 * nth;
            case.calls.push(buy((at, at + 2), &format!("user-{nth}"), 503, "overloaded", None));
        }
    }),
    ("faults-hit", |case| case.outages[0].missed = Some("it is down".into())),
];

#[test]
fn nothing_is_found_where_every_promise_was_kept() {
    let judgement = judge(&kept());
    assert_eq!(judgement.broken, vec![]);
    assert_eq!(judgement.short, vec![]);
}

#[test]
fn a_stream_that_shows_a_state_twice_or_one_that_never_was_is_found() {
    for planted in
        [follow((1_040, 1_044), "ada", ADA, "paid"), follow((1_040, 1_044), "ada", ADA, "refunded")]
    {
        let mut case = kept();
        case.calls.push(planted);
        assert!(judge(&case).broken.iter().any(|finding| finding.rule == "stream-shows-all"));
        // After a loss that may undo what was shown, the last state counts.
        case.outages[0].may_undo = Some((1_041, 1_042));
        let is_last = case.calls.last().unwrap().answer.code == "paid";
        assert_eq!(judge(&case).broken.iter().any(|finding| finding.rule == "stream-shows-all"), !is_last);
    }
}

#[test]
fn a_stream_that_has_shown_an_end_is_over_although_a_loss_undoes_that_end() {
    let finds = |case: &Case| judge(case).broken.iter().any(|finding| finding.rule == "stream-shows-all");
    let mut case = kept();
    for (at, state) in
        [((1_005, 1_007), "accepted"), ((1_007, 1_012), "confirmed"), ((1_012, 5_030), "expired")]
    {
        case.calls.push(follow(at, "bob", BOB, state));
    }
    assert!(!finds(&case));
    // A replay ends as cancelled what the gate has back.
    case.books.orders[1].status = "cancelled".into();
    case.books.changes[1].to = "cancelled".into();
    assert!(finds(&case));
    case.outages[0].may_undo = Some((4_000, 6_000));
    assert!(!finds(&case));
    case.outages[0].may_undo = Some((500, 1_006));
    assert!(finds(&case), "the end was shown later");
}

#[test]
fn a_webhook_that_comes_too_early_or_says_what_never_was_is_found() {
    let finds = |case: &Case| judge(case).broken.iter().any(|finding| finding.rule == "webhooks-say-all");
    for planted in [said(1_011, CAROL, 2, "cancelled"), said(1_011, CAROL, 2, "paid")] {
        let mut case = kept();
        case.webhooks.as_mut().unwrap().insert(0, planted);
        assert!(finds(&case), "{case:?}");
    }
    // After a loss that may undo what was said, the last state counts.
    let mut case = kept();
    case.webhooks.as_mut().unwrap().insert(6, said(5_010, BOB, 2, "paid"));
    assert!(finds(&case));
    case.outages[0].may_undo = Some((1_041, 1_042));
    assert!(!finds(&case));
    case.webhooks.as_mut().unwrap().push(said(6_000, BOB, 3, "refunded"));
    assert!(finds(&case));
    case.webhooks = None;
    assert!(!finds(&case), "there was no endpoint");
}

#[test]
fn broken_books_that_were_said_are_found_unless_data_was_lost() {
    let finds =
        |case: &Case| judge(case).broken.iter().any(|finding| finding.rule == "webhooks-say-how-it-ended");
    let mut case = kept();
    case.sale_webhooks.as_mut().unwrap().insert(3, "books_broken".into());
    assert!(finds(&case));
    case.outages[0].loses = Some("writes".into());
    assert!(!finds(&case));
    case.sale_webhooks = None;
    assert!(!finds(&case), "there was no endpoint");
}

#[test]
fn a_refusal_is_judged_by_its_reason_and_its_time() {
    let act = |at: (i64, i64), act: &str| OperatorAct {
        from_ms: at.0,
        to_ms: at.1,
        act: act.to_owned(),
        units: 0,
        sku: String::new(),
        ..kept().acts[0].clone()
    };
    let paused_until_1_200 = [act((1_100, 1_101), "pause {}"), act((1_199, 1_200), "resume {}")];
    let cancel = |at| call(at, "ada", Ask::Cancel { order: ADA }, (409, "invalid_transition"));
    let pay = |code| call((1_020, 1_031), "ada", Ask::Pay { order: ADA, event: "evt-2".into() }, code);
    for (planted, is_true) in [
        (buy((1_150, 1_152), "erin", 503, "sale_paused", None), true),
        (buy((1_190, 1_195), "erin", 503, "sale_paused", None), true),
        (buy((1_090, 1_095), "erin", 503, "sale_paused", None), false),
        (buy((1_300, 1_302), "erin", 503, "sale_paused", None), false),
        (buy((1_150, 1_152), "erin", 429, "rate_limited", None), false),
        (buy((1_250, 1_252), "erin", 429, "rate_limited", None), true),
        (buy((1_150, 1_152), "erin", 409, "purchase_limit", None), false),
        (buy((1_150, 1_152), "erin", 401, "unauthenticated", None), false),
        (cancel((1_100, 1_102)), true),
        (cancel((900, 902)), false),
        (pay((422, "payment_mismatch")), false),
        (pay((503, "act_unfinished")), true),
    ] {
        let mut case = kept();
        case.acts.extend(paused_until_1_200.clone());
        case.acts.push(act((1_210, 1_211), "change {\"user_rate\":\"5/10s\"}"));
        case.calls.push(planted.clone());
        let found = judge(&case).broken.iter().any(|finding| finding.rule == "refusal-is-true");
        assert_eq!(!found, is_true, "{planted:?}");
    }
}

#[test]
fn an_act_without_an_answer_may_have_been_carried_out() {
    let mut case = kept();
    (case.acts[0].units, case.acts[0].perhaps) = (0, 1);
    assert_eq!(judge(&case).broken, vec![]);
    case.books.items[0].stock += 1;
    assert!(judge(&case).broken.iter().any(|finding| finding.rule == "stock-follows-acts"));
}

/// Erin may have three units and takes two; then she asks for so many more, and hears this.
fn two_of_three_and_then(quantity: i64, code: &str) -> Case {
    let (first, second) = (Uuid::from_u128(5), Uuid::from_u128(6));
    let ask = |key: &str, quantity| Ask::Buy { key: key.to_owned(), sku: "unit".into(), quantity };
    let mut case = kept();
    case.sale.limit = 3;
    let mut took = call((1_060, 1_062), "erin", ask("one", 2), (202, "accepted"));
    took.answer.order = Some(first);
    let status = if code == "accepted" { 202 } else { 409 };
    let mut then = call((1_070, 1_072), "erin", ask("two", quantity), (status, code));
    then.answer.order = (code == "accepted").then_some(second);
    case.calls.extend([took, then]);
    case
}

#[test]
fn a_buyer_gets_units_up_to_the_limit_and_is_refused_above_it() {
    let fits = |case: Case| !judge(&case).broken.iter().any(|finding| finding.rule == "linearizable");
    assert!(fits(two_of_three_and_then(1, "accepted")));
    assert!(!fits(two_of_three_and_then(2, "accepted")));
    assert!(fits(two_of_three_and_then(2, "purchase_limit")));
    assert!(!fits(two_of_three_and_then(1, "purchase_limit")));
}

#[test]
fn each_rule_catches_its_planted_mistake() {
    for (name, plant) in PLANTED {
        let mut case = kept();
        plant(&mut case);
        let judgement = judge(&case);
        let rule = RULES.iter().find(|rule| rule.name == *name).unwrap_or_else(|| panic!("{name} is a rule"));
        let found = if rule.kind == Kind::Promise { &judgement.broken } else { &judgement.short };
        assert!(found.iter().any(|finding| finding.rule == *name), "{name}: {judgement}");
    }
}

#[test]
fn every_rule_has_a_planted_mistake() {
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    let planted: BTreeSet<&str> = PLANTED.iter().map(|(name, _)| *name).collect();
    assert_eq!(rules, planted);
    assert_eq!(rules.len(), RULES.len(), "each name is used once");
}

#[test]
fn a_kept_case_is_judged_alike_when_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut case = kept();
    (PLANTED[9].1)(&mut case);
    case.keep(folder.path()).unwrap();
    let (before, after) = (judge(&case), judge(&Case::open(folder.path()).unwrap()));
    assert_eq!(before.broken, after.broken);
    assert!(
        before.stories[0].contains("buys        1 unit with key click: at 0.002 s sold_out"),
        "{:?}",
        before.stories
    );
}
