//! A case in which every promise was kept, and for each rule a mistake that it must catch.

mod answers;
mod streams;

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
    ("nobody-refused-has-one", |case| {
        let row = OrderRow { id: Uuid::from_u128(4), user: "dave".into(), ..case.books.orders[1].clone() };
        case.books.orders.push(row);
    }),
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
