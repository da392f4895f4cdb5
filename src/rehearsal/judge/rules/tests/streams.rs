//! What streams and webhooks say.

use super::*;

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
