//! Starting a server of any kind.

use std::path::Path;

use super::error::ServerError;
use super::fake_clock::FakeClock;
use super::rabbitmq::Starting;
use super::server::{Kind, Server};
use super::{mariadb, postgres, rabbitmq, redis};

impl Server {
    /// Starts a server with its data under `folder`, and returns when it answers its protocol. If a killed
    /// predecessor left a process running on the same data, that process is killed first.
    pub async fn start(kind: Kind, folder: &Path) -> Result<Self, ServerError> {
        let home = folder.join(kind.name());
        match kind {
            Kind::Redis => redis::start(&home, None).await,
            Kind::Rabbitmq => rabbitmq::begin(&home).await?.ready().await,
            Kind::Postgres => postgres::start(&home).await,
            Kind::Mariadb => mariadb::start(&home).await,
        }
    }

    /// Starts Redis with this clock.
    pub async fn start_redis_with_clock(folder: &Path, clock: &FakeClock) -> Result<Self, ServerError> {
        redis::start(&folder.join(Kind::Redis.name()), Some(clock)).await
    }

    /// Starts RabbitMQ without waiting the seconds until it answers. Its URL is known on return.
    pub async fn begin_rabbitmq(folder: &Path) -> Result<Starting, ServerError> {
        rabbitmq::begin(&folder.join(Kind::Rabbitmq.name())).await
    }
}
