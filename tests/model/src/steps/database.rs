//! The transactions of the database, with the constraints that it really has: the primary key, the unique key over sale,
//! user and live key, the unique number, the user's units up to the limit, `sold` up to `stock`, and the fencing token.

use super::witness::advance;
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Broken, Kind, Row, State};

/// What became of an order in a worker's transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// A higher token has written for the user, or nothing may be written: take the lease again.
    Stale,
    /// The row existed.
    Already(Row),
    /// The row is written.
    Now(Row),
}

/// `Store::record` and, for a refusal, `commit_failure` in `src/store/orders/refuse.rs`.
pub fn record(state: &mut State, config: &Config, id: usize, token: u8) -> Recorded {
    if state.db.rows[id] != Row::None {
        return Recorded::Already(state.db.rows[id]);
    }
    let Some(order) = state.orders[id] else { return Recorded::Stale };
    let user = usize::from(order.user);
    if state.db.fence[user] > token && config.mistake != Mistake::NoFence {
        return Recorded::Stale;
    }
    let same_key =
        state.live_of(order.user).any(|other| state.orders[other].is_some_and(|it| it.key == order.key));
    let number_taken = state.is_taken(id);
    let has_one = state.db.units[user] >= 1 && config.mistake != Mistake::NoLimit;
    let sold_out = state.db.sold >= state.db.stock && config.mistake != Mistake::NoStock;
    let row = if same_key || !number_taken && has_one {
        Row::Replaced
    } else if number_taken || sold_out {
        Row::Refused
    } else {
        Row::Confirmed
    };
    state.db.rows[id] = row;
    if row == Row::Confirmed {
        state.db.units[user] += 1;
        state.db.sold += 1;
        write_fence(state, user, token);
    } else {
        state.db.unnumbered[id] = number_taken;
        state.db.unlogged[id] = true;
    }
    advance(state, config);
    Recorded::Now(row)
}

/// Records the token, and whether it came after a higher one.
pub fn write_fence(state: &mut State, user: usize, token: u8) {
    if token < state.db.writer[user] {
        state.broke(Broken::StaleWrite);
    }
    state.db.writer[user] = state.db.writer[user].max(token);
    state.db.fence[user] = state.db.fence[user].max(token);
}

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Committed now.
    Now,
    /// The row's state does not allow it.
    Refused,
    /// A higher token has written for the user: take the lease again.
    Stale,
}

/// `Store::change`, or `Store::cancel_unrecorded` where there is no row.
pub fn change(state: &mut State, config: &Config, kind: Kind, id: usize, token: u8) -> Changed {
    let Some(order) = state.orders[id] else { return Changed::Refused };
    let user = usize::from(order.user);
    let row = state.db.rows[id];
    if row == Row::None && kind == Kind::Cancel {
        if state.is_taken(id) {
            return Changed::Stale;
        }
        state.db.rows[id] = Row::Cancelled;
    } else if row != Row::Confirmed {
        return Changed::Refused;
    } else if state.db.fence[user] > token && config.mistake != Mistake::NoFence {
        return Changed::Stale;
    } else {
        state.db.rows[id] = match kind {
            Kind::Pay => Row::Paid,
            Kind::Expire => Row::Expired,
            _ => Row::Cancelled,
        };
        write_fence(state, user, token);
    }
    if kind != Kind::Pay {
        state.db.returns[id] = true;
        if row == Row::Confirmed {
            state.db.units[user] -= 1;
            state.db.sold -= 1;
        }
    }
    state.db.unlogged[id] = true;
    advance(state, config);
    Changed::Now
}
