//! The rules, each a sentence that a buyer, an operator or an accountant would agree with.

mod answers;
mod floors;
mod linear;
mod payments;
mod rows;
mod streams;
mod units;
mod webhooks;

#[cfg(test)]
mod tests;

use super::rule::{Rule, floor, promise};

/// Every rule.
pub const RULES: &[Rule] = &[
    promise("no-unit-twice", "Live orders never hold more units than the stock.", units::no_unit_twice),
    promise("limit", "No buyer holds more units than the limit.", units::limit),
    promise(
        "conservation",
        "Of each item, the gate's stock is what is left and what live orders hold.",
        units::conservation,
    ),
    promise(
        "stock-follows-acts",
        "The stock is what the operator's acts made it.",
        units::stock_follows_acts,
    ),
    promise(
        "accepted-is-kept",
        "Every order that a buyer was given has a row that did not fail, with what they asked for.",
        answers::accepted_is_kept,
    ),
    promise(
        "ends-readable",
        "In the end every order that a buyer was given can be read, in the state of its row.",
        answers::ends_readable,
    ),
    promise(
        "no-404-after-202",
        "No read of an order that was given before is answered with 404.",
        answers::no_404_after_202,
    ),
    promise(
        "same-click-same-order",
        "One buyer's clicks with the same key give the same order, and clicks with another key another.",
        answers::same_click_same_order,
    ),
    promise("no-way-back", "No later answer shows an earlier state.", answers::no_way_back),
    promise(
        "sold-out-is-true",
        "Nobody hears sold_out while a unit is free all the time.",
        answers::sold_out_is_true,
    ),
    promise("refusal-is-true", "A refusal's reason is true.", answers::refusal_is_true),
    promise("linearizable", "Each buyer's answers fit one order of events.", linear::linearizable),
    promise(
        "paid-stays-paid",
        "An order whose payment was applied is paid in the end.",
        payments::paid_stays_paid,
    ),
    promise(
        "money-is-named",
        "Each payment has paid an order, or is named as money that has to go back.",
        payments::money_is_named,
    ),
    promise(
        "in-time-is-in-time",
        "No payment of an order within its time to pay is late.",
        payments::in_time_is_in_time,
    ),
    promise(
        "never-expired-early",
        "No order expires before its time to pay has passed.",
        payments::never_expired_early,
    ),
    promise(
        "payment-counts-once",
        "Each payment that was answered has one row with that answer, and each paid order one payment.",
        payments::payment_counts_once,
    ),
    promise(
        "path-of-arrows",
        "The changes of each row are a path along the arrows, up to its state.",
        rows::path_of_arrows,
    ),
    promise(
        "somebody-asked",
        "Every order has a buyer who clicked, and every end somebody who asked for it.",
        rows::somebody_asked,
    ),
    promise(
        "nobody-refused-has-one",
        "No order belongs to a click that was refused for good.",
        rows::nobody_refused_has_one,
    ),
    promise("at-rest", "In the end nothing is on its way.", rows::at_rest),
    promise(
        "stream-shows-all",
        "The stream of an order shows every state that it reached, in order, and no other.",
        streams::stream_shows_all,
    ),
    promise(
        "webhooks-say-all",
        "The webhooks of an order say every state that its row reached, in order, and no other.",
        webhooks::webhooks_say_all,
    ),
    promise(
        "webhooks-say-how-it-ended",
        "The last webhook about the state of a sale says what was done to it last, and none that its books are broken.",
        webhooks::webhooks_say_how_it_ended,
    ),
    floor(
        "sold-enough",
        "At least nine tenths of what stock and buyers allow is accepted.",
        floors::sold_enough,
    ),
    floor(
        "paid-enough",
        "At least eight tenths of the payments sent in time are applied.",
        floors::paid_enough,
    ),
    floor("read-enough", "At least eight tenths of the reads show a state.", floors::read_enough),
    floor("shown-soon", "At least eight tenths of the events come within 10 s.", streams::shown_soon),
    floor("rest-soon", "The books are at rest soon after everything is healed.", floors::rest_soon),
    floor("sells-on", "While nothing is down and units are free, orders are accepted.", floors::sells_on),
    floor(
        "sells-again",
        "Whatever is down, and units are free, orders are accepted again within 45 s.",
        floors::sells_again,
    ),
    floor("faults-hit", "At least nine tenths of the faults have an effect.", floors::faults_hit),
];
