//! The protocol within every bound: no property is violated. Each planted mistake, and each weakness that is left out, is
//! found with its trace.

use std::time::Duration;

use doorbuster_model::check::{find, run};
use doorbuster_model::config::{Config, Finding};
use doorbuster_model::mistakes::Mistake;
use doorbuster_model::properties::*;
use doorbuster_model::reach::ends_from_everywhere;

const LIMIT_OF_A_RUN: Duration = Duration::from_secs(300);

/// One after the other, because each uses both threads.
#[test]
fn no_order_of_steps_and_faults_violates_a_property() {
    let mut most = 0;
    for config in Config::all() {
        let name = config.name;
        let found = run(config, 2, LIMIT_OF_A_RUN);
        println!("{name}: {} states, depth {}, {:.1} s", found.states, found.depth, found.took.as_secs_f64());
        assert!(found.done, "{name}: not all states were seen");
        let violated: String =
            found.violated.iter().map(|(name, trace)| format!("{name}\n{trace}\n")).collect();
        assert!(found.violated.is_empty(), "{name}: violated: {violated}");
        most = most.max(found.states);
    }
    assert!(most >= 1_000_000, "the largest configuration has only {most} states");
}

fn is_found(what: &str, config: Config, property: &'static str) -> Result<(), String> {
    let name = config.name;
    let found = find(config, property, LIMIT_OF_A_RUN);
    let violated: Vec<&str> = found.violated.iter().map(|(name, _)| *name).collect();
    let Some((_, trace)) = found.violated.iter().find(|(name, _)| *name == property) else {
        return Err(format!(
            "{what} in {name}: {property:?} holds in {} states; found: {violated:?}",
            found.states
        ));
    };
    println!("{what} in {name}: {property:?} is violated, after {} states\n{trace}", found.states);
    Ok(())
}

fn two_reads() -> Config {
    let mut config = Config::redis_back();
    config.set("reads", 2);
    config.set("clicks", 1);
    config
}

#[test]
fn every_planted_mistake_is_found() {
    let mut cancels = Config::returns();
    cancels.budget.expiries = 0;
    let mut one_unit = Config::delivery();
    one_unit.set("stock", 1);
    let mut two_keys = Config::delivery();
    two_keys.set("keys", 2);
    let planted = [
        (Mistake::NoStock, one_unit, NO_OVERSELL),
        (Mistake::NoLimit, two_keys, LIMIT),
        (Mistake::AdmitWithoutOutbox, Config::delivery(), NOT_LOST),
        (Mistake::DeleteAtConfirm, Config::delivery(), NOT_LOST),
        (Mistake::RepublishWithoutId, Config::delivery(), ONE_ROW),
        (Mistake::SettleBeforeCommit, Config::delivery(), NOT_LOST),
        (Mistake::ReleaseBeforeCommit, Config::delivery(), ALONE),
        (Mistake::NoFence, Config::leases(), FENCED),
        (Mistake::ReturnBeforeCommit, Config::leases(), GATE_AGREES),
        (Mistake::ReturnTwice, Config::returns(), ONE_RETURN),
        (Mistake::NoComparison, Config::redis_back(), GATE_AGREES),
        (Mistake::NoFreeze, Config::redis_back(), ENDS),
        (Mistake::RowsFirst, Config::redis_back(), GATE_AGREES),
        (Mistake::NoLog, Config::redis_empty(), GATE_AGREES),
        (Mistake::BelieveOldEntries, two_reads(), FORWARD),
        (Mistake::RowThenGate, Config::returns(), FOUND),
        (Mistake::NoWitness, Config::payment_back(), PAID),
        (Mistake::PaymentBeforeLog, Config::payment_back(), PAID),
        (Mistake::LiveFirst, Config::database_back(), ENDS),
        (Mistake::AnswerUnmarked, cancels, FORWARD),
        (Mistake::MarkWhatWasSeen, two_reads(), FORWARD),
        (Mistake::OldReturns, Config::database_back(), GATE_AGREES),
        (Mistake::NoLook, Config::redis_back_and_crash(), ENDS),
        (Mistake::AnswerAtOnce, Config::refusals(), AGREES),
        (Mistake::OldReadings, Config::refusals(), FRESH),
    ];
    let missed: Vec<String> = planted
        .into_iter()
        .filter_map(|(mistake, config, property)| {
            is_found(&format!("{mistake:?}"), config.with(mistake), property).err()
        })
        .collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// If it is no longer found, the engine's model has been put right: take it out of `Finding`.
#[test]
fn what_is_left_out_is_shown_by_a_trace() {
    let mut swift = Config::payment_back();
    swift.set("payments", 0);
    swift.set("clicks", 2);
    is_found("SwiftLoss", swift.showing(Finding::SwiftLoss), HONOURED).unwrap();
}

/// The outbox still has the order, and the sweep publishes it again. So this costs time, and loses nothing.
#[test]
fn an_acknowledgement_before_commit_loses_no_order() {
    let mut config = Config::delivery().with(Mistake::AckBeforeCommit);
    config.set("duplicates", 0);
    let found = run(config, 1, LIMIT_OF_A_RUN);
    assert!(found.done && found.violated.is_empty(), "{:?}", found.violated);
}

#[test]
fn from_every_state_the_system_comes_to_its_end_by_itself() {
    let mut delivery = Config::delivery();
    delivery.set("stock", 1);
    let mut leases = Config::leases();
    leases.set("duplicates", 0);
    let mut database = Config::database_back();
    database.set("reads", 0);
    database.set("clicks", 1);
    let mut payment = Config::payment_back();
    payment.set("reads", 0);
    let mut redis = Config::redis_back();
    redis.set("reads", 0);
    for config in [delivery, leases, redis, Config::redis_empty(), database, payment] {
        let name = config.name;
        let reached = ends_from_everywhere(config);
        println!("{name}: {} states, {} of them stuck", reached.states, reached.stuck);
        assert_eq!(reached.stuck, 0, "{name}");
    }
}
