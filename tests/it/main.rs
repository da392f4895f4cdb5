//! Doorbuster against real servers of its own: Redis, RabbitMQ, PostgreSQL and MariaDB, started for
//! this run on free ports and ended with it. Each test has its own sale, key prefix, queues and
//! database, so all run in parallel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod archive;
mod commands;
mod control;
mod dev;
mod documents;
mod drills;
mod faults;
mod front;
mod gate;
mod gate_model;
mod hostile;
mod lease;
mod lease_kept;
mod lease_processes;
mod lease_scopes;
mod lease_waiting;
mod letters;
mod life;
mod outages;
mod path;
mod payments;
mod processes;
mod queue;
mod recovery;
mod repair;
mod repair_compare;
mod replay;
mod replay_runs;
mod rules;
mod store;
mod store_life;
mod structure;
mod support;
mod together;
