//! Refusals and their reasons, and orders that are not what was asked for.

use super::*;

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
        (buy((3_150, 3_152), "erin", 429, "rate_limited", None), true),
        (buy((3_350, 3_352), "erin", 429, "rate_limited", None), false),
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
        case.acts.push(act((1_310, 1_311), "change {\"user_rate\":null}"));
        case.calls.push(planted.clone());
        let found = judge(&case).broken.iter().any(|finding| finding.rule == "refusal-is-true");
        assert_eq!(!found, is_true, "{planted:?}");
    }
}

#[test]
fn an_order_that_is_not_what_was_asked_for_or_that_two_clicks_got_is_found() {
    let finds = |case: &Case, rule: &str| judge(case).broken.iter().any(|finding| finding.rule == rule);
    let mut case = kept();
    case.books.orders[0].quantity = 2;
    assert!(finds(&case, "accepted-is-kept"));
    let mut case = kept();
    let ask = Ask::Buy { key: "other".into(), sku: "unit".into(), quantity: 1 };
    let mut again = call((1_100, 1_104), "ada", ask, (202, "accepted"));
    again.answer.order = Some(ADA);
    case.sale.limit = 2;
    case.calls.push(again);
    assert!(finds(&case, "same-click-same-order") && finds(&case, "linearizable"));
}

/// Carol did not ask for it, and a loss of another server leads to no replay.
#[test]
fn a_cancellation_that_nobody_asked_for_is_excused_by_a_replay_alone() {
    let of_carol = |says: &str| says.contains(&CAROL.to_string());
    let finds = |case: &Case| {
        let broken = judge(case).broken;
        broken.iter().any(|finding| finding.rule == "somebody-asked" && of_carol(&finding.says))
    };
    let mut case = kept();
    case.intents[2].1 = Intent::NeverPays;
    case.outages[0] = Outage { from_ms: 1_200, to_ms: 1_290, ..case.outages[0].clone() };
    for (server, is_found) in [("redis", true), ("rabbitmq", true), ("postgres", false)] {
        case.outages[0].loses = Some(server.into());
        assert_eq!(finds(&case), is_found, "{server}");
    }
    // An order that nobody has to pay for has not expired either.
    case.sale.pay_within_ms = None;
    assert!(finds(&case));
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

/// Dave was refused, and has an order all the same.
#[test]
fn an_order_of_a_refused_click_is_excused_by_what_may_have_taken_it() {
    const TAKEN: Uuid = Uuid::from_u128(4);
    let refused = || {
        let mut case = kept();
        let row = OrderRow { id: TAKEN, user: "dave".into(), ..case.books.orders[1].clone() };
        case.books.orders.push(row);
        case
    };
    let finds =
        |case: &Case| judge(case).broken.iter().any(|finding| finding.rule == "nobody-refused-has-one");
    let unanswered = |at: (i64, i64)| {
        let mut call = buy(at, "dave", 0, "unanswered", None);
        call.answer.status = None;
        call
    };
    assert!(finds(&refused()));
    // The refusal was at 1,050 to 1,052. An attempt at these times has no answer.
    for (at, is_found) in [((500, 1_000), false), ((1_060, 1_070), false), ((-9_000, -8_000), true)] {
        let mut case = refused();
        case.calls.push(unanswered(at));
        assert_eq!(finds(&case), is_found, "{at:?}");
    }
    let mut case = refused();
    case.outages[0] =
        Outage { from_ms: 900, to_ms: 950, loses: Some("redis".into()), ..case.outages[0].clone() };
    assert!(!finds(&case));
    let mut case = refused();
    case.books.payments[0].new_order = Some(TAKEN);
    assert!(!finds(&case));
}
