//! Doorbuster against real servers of its own: Redis, RabbitMQ, PostgreSQL and MariaDB, started for
//! this run on free ports and ended with it. Each test has its own sale, key prefix, queues and
//! database, so all run in parallel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod commands;
mod dev;
mod documents;
mod drills;
mod examples;
mod faults;
mod glossary;
mod orders;
mod recovery;
mod seams;
mod structure;
mod support;
