//! The steps. Each returns whether it could be taken; a state in which it could not is thrown away.

mod acts;
mod database;
mod faults;
mod gate;
mod rebuild;
mod refusals;
mod relay;
mod replay;
mod witness;
mod worker;

use crate::action::Action;
use crate::config::Config;
use crate::state::State;

/// Takes a step. `false` if it was not possible, or pointless.
pub fn take(state: &mut State, config: &Config, action: Action) -> bool {
    match action {
        Action::Click { user, key } => gate::click(state, config, user, key),
        Action::Publish { order } => relay::publish(state, order),
        Action::Confirm { order } => relay::confirm(state, config, order),
        Action::LoseConfirm { order } => relay::lose_confirm(state, order),
        Action::Sweep { order } => relay::sweep(state, config, order),
        Action::Deliver { worker, order } => worker::deliver(state, config, worker, order),
        Action::TakeLease { worker } => worker::take_lease(state, config, worker),
        Action::CheckLease { worker } => worker::check_lease(state, config, worker),
        Action::Commit { worker } => worker::commit(state, config, worker),
        Action::Acknowledge { worker } => worker::acknowledge(state, worker),
        Action::Settle { worker } => worker::settle(state, config, worker),
        Action::Begin { kind, order } => acts::begin(state, config, kind, order),
        Action::CheckAct => acts::check(state, config),
        Action::CommitAct => acts::commit(state, config),
        Action::FinishAct => acts::finish(state, config),
        Action::LoseReturn => acts::lose_return(state, config),
        Action::RecordReturn => acts::record_return(state, config),
        Action::WriteLog { order } => witness::write_log(state, config, order),
        Action::ComparePlaces => witness::compare_places(state, config),
        Action::Compare => witness::compare(state),
        Action::FinishCompare => witness::finish_compare(state),
        Action::BeginRebuild => rebuild::begin(state, config),
        Action::Rebuild => rebuild::step(state, config),
        Action::BeginReplay => replay::begin(state, config),
        Action::Restore { order } => replay::restore(state, config, order),
        Action::BeginLine => replay::begin_line(state),
        other => take_rare(state, config, other),
    }
}

/// What people ask for, and faults.
fn take_rare(state: &mut State, config: &Config, action: Action) -> bool {
    match action {
        Action::Restock => refusals::restock(state, config),
        Action::ApplyRestock => refusals::apply_restock(state),
        Action::AnswerRestock => refusals::answer_restock(state, config),
        Action::Answer { order } => refusals::answer(state, config, order),
        Action::Tick => refusals::tick(state, config),
        Action::BeginReading => refusals::begin_reading(state, config),
        Action::Read => refusals::read(state),
        Action::Refuse { user } => refusals::refuse(state, config, user),
        Action::ReadGate { order } => relay::read_gate(state, config, order),
        Action::ReadRow => relay::read_row(state, config),
        Action::EndLease { user } => faults::end_lease(state, user),
        Action::FreeLease { user } => faults::free_lease(state, user),
        Action::CrashWorker { worker } => faults::crash_worker(state, config, worker),
        Action::CrashFront => faults::crash_front(state, config),
        Action::CrashRecovery => faults::crash_recovery(state),
        Action::Duplicate { order } => faults::duplicate(state, order),
        Action::Purge => faults::purge(state),
        Action::SaveGate => faults::save_gate(state),
        Action::LoseGate => faults::lose_gate(state, config),
        Action::EmptyGate => faults::empty_gate(state, config),
        Action::SaveDb => faults::save_db(state),
        Action::LoseDb => faults::lose_db(state, config),
        _ => false,
    }
}
