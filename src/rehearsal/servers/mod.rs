//! Private servers as children of this process: Redis, RabbitMQ, PostgreSQL and MariaDB.
//!
//! Each listens on a free port of 127.0.0.1, keeps its data in a separate folder, and ends with this process at the
//! latest. Used by `dev`, the drills, the benchmarks and the tests. This module sends signals only to processes that
//! Doorbuster itself has started.

mod child;
mod command;
mod error;
mod fake_clock;
mod folder;
mod mariadb;
mod ports;
mod postgres;
mod proc;
mod programs;
mod rabbitmq;
mod rabbitmqctl;
mod redis;
mod server;
mod start;

pub use child::{Child, Ending};
pub use command::{start_program, start_self};
pub use error::ServerError;
pub use fake_clock::FakeClock;
pub use folder::{Folder, Secret};
pub use ports::free as free_port;
pub use programs::postgres as postgres_program;
pub use rabbitmq::Starting;
pub use server::{Kind, Server};
