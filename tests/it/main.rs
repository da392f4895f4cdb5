//! Tests Doorbuster against real servers: Redis, RabbitMQ, PostgreSQL and MariaDB, which are started on free ports
//! for this run and stopped with it. Each test has its own sale, key prefix, queues and database, so all tests run in
//! parallel.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod commands;
mod contract;
mod dev;
mod doctor;
mod documents;
mod drills;
mod examples;
mod faults;
mod glossary;
mod init;
mod orders;
mod passwords;
mod recovery;
mod seams;
mod structure;
mod support;
