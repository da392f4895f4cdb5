//! States that differ only in names are one: tokens become ranks, workers are sorted, and what nobody reads any more is
//! forgotten.

use crate::config::Config;
use crate::state::{Heard, Owner, Row, State, USERS, Work, Worker};

impl State {
    /// A token above every one of this user: `lua/lease/take.lua` takes it from a clock that never goes back.
    pub fn next_token(&self, user: u8) -> u8 {
        self.tokens_of(user).into_iter().max().unwrap_or_default() + 1
    }

    fn tokens_of(&self, user: u8) -> Vec<u8> {
        let at = usize::from(user);
        let mut tokens = vec![self.leases[at].token, self.db.fence[at], self.db.writer[at]];
        if let Some(saved) = &self.saved_db {
            tokens.extend([saved.fence[at], saved.writer[at]]);
        }
        let workers = self.workers.iter().filter(|it| self.user_of(usize::from(it.order)) == user);
        tokens.extend(workers.map(|it| it.token));
        let act = self.act.iter().filter(|act| self.user_of(usize::from(act.order)) == user);
        tokens.extend(act.map(|act| act.token));
        tokens
    }

    /// Brings the state into the one form that stands for all alike.
    pub fn normalise(&mut self, config: &Config) {
        self.forget(config);
        for user in 0..USERS as u8 {
            let mut tokens: Vec<u8> = self.tokens_of(user).into_iter().filter(|token| *token > 0).collect();
            tokens.sort_unstable();
            tokens.dedup();
            if tokens.last().is_some_and(|last| usize::from(*last) > tokens.len()) {
                self.rename(user, &tokens);
            }
        }
        if config.workers == 2 && self.workers[0] > self.workers[1] {
            self.workers.swap(0, 1);
            for lease in &mut self.leases {
                if let Owner::Worker(worker) = lease.owner {
                    lease.owner = Owner::Worker(1 - worker);
                }
            }
        }
    }

    fn forget(&mut self, config: &Config) {
        for lease in &mut self.leases {
            if lease.owner == Owner::Nobody {
                lease.token = 0;
            }
        }
        for worker in &mut self.workers {
            let heard =
                if config.follows_places() { worker.heard } else { Heard { place: (0, 0), in_doubt: false } };
            if worker.work == Work::Idle {
                *worker = Worker::idle();
            }
            if matches!(worker.work, Work::Got | Work::Committed | Work::Acked) {
                worker.token = if worker.work == Work::Committed { worker.token } else { 0 };
            }
            worker.heard = heard;
        }
        if !config.follows_places() {
            // Only a database that went back is compared with the rows in the log.
            self.db.unlogged.fill(false);
            self.log.rows.fill(Row::None);
        }
        if self.budget.redis_back == 0 {
            self.saved_gate = None;
        }
        if self.budget.db_back == 0 {
            self.saved_db = None;
        }
        if self.budget.reads == 0 && self.reader.is_none() {
            self.memory.seen.fill(None);
        }
        if self.gate.left <= 0 || !config.has_clock() {
            self.memory.free_for = 0;
        }
        if self.budget.refusals == 0 {
            self.reading = None;
        }
    }

    /// Called when the database goes back and when a witness is lost. A loss that nobody can notice is the documented
    /// limit: no witness knows a place above that of the database.
    pub fn judge_witnesses(&mut self) {
        if self.memory.lost_place.is_none() {
            return;
        }
        let workers = self.workers.iter().map(|worker| worker.heard.place);
        let all = workers.chain([self.heard.place, self.gate.witness, self.log.place]);
        if all.max().unwrap_or_default() <= self.db.place {
            self.memory.unwitnessed = true;
            self.memory.lost_place = None;
        }
    }

    fn rename(&mut self, user: u8, tokens: &[u8]) {
        let rank = |token: &mut u8| {
            if *token > 0 {
                *token = tokens.iter().position(|known| known == token).unwrap_or_default() as u8 + 1;
            }
        };
        let at = usize::from(user);
        rank(&mut self.leases[at].token);
        rank(&mut self.db.fence[at]);
        rank(&mut self.db.writer[at]);
        if let Some(saved) = &mut self.saved_db {
            rank(&mut saved.fence[at]);
            rank(&mut saved.writer[at]);
        }
        let users = self.orders.map(|order| order.map_or(0, |order| order.user));
        for worker in &mut self.workers {
            if users[usize::from(worker.order)] == user {
                rank(&mut worker.token);
            }
        }
        if let Some(act) = self.act.as_mut().filter(|act| users[usize::from(act.order)] == user) {
            rank(&mut act.token);
        }
    }
}
