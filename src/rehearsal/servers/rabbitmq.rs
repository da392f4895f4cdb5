//! A private RabbitMQ node. It has its own epmd, so that nothing outlives it and it cannot meet other nodes on this
//! machine.

use std::path::Path;
use std::time::Duration;

use super::child::Child;
use super::command::Command;
use super::error::ServerError;
use super::proc::end_leftover;
use super::rabbitmqctl::{NODE, Rabbitmqctl};
use super::server::{Kind, Server};
use super::{folder, ports, programs};

/// How long a start may take. It takes 4 to 10 s on a quiet machine.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A node that was started and does not answer yet. Dropping it kills it.
pub struct Starting {
    /// The address at which it will answer.
    pub url: String,
    port: u16,
    child: Child,
    epmd: Child,
    control: Rabbitmqctl,
}

impl Starting {
    /// Returns when the node answers, or fails after two minutes.
    pub async fn ready(self) -> Result<Server, ServerError> {
        let ready = |answer: &[u8]| answer.first() == Some(&1);
        let greeting = ports::Greeting { port: self.port, bytes: b"AMQP\x00\x00\x09\x01", ready };
        ports::until_ready(&self.child, &greeting, READY_WITHIN).await?;
        Ok(Server {
            kind: Kind::Rabbitmq,
            url: self.url,
            child: self.child,
            helpers: vec![self.epmd],
            control: Some(self.control),
        })
    }
}

/// The node's three ports.
struct Ports {
    amqp: u16,
    distribution: u16,
    epmd: u16,
}

/// Starts a node, and returns at once.
pub(super) async fn begin(home: &Path) -> Result<Starting, ServerError> {
    let program = programs::rabbitmq()?;
    let epmd_home = home.join("epmd");
    folder::private(&epmd_home)?;
    end_leftover(home).await;
    end_leftover(&epmd_home).await;
    let ports = Ports { amqp: ports::free()?, distribution: ports::free()?, epmd: ports::free()? };
    let epmd = start_epmd(&epmd_home, ports.epmd)?;
    write_settings(home, ports.amqp)?;
    let env = environment(home, &ports);
    let child =
        Command { name: "rabbitmq-server", program: &program, args: Vec::new(), env, home, user: None }
            .spawn()?;
    let control = Rabbitmqctl { home: home.to_owned(), epmd_port: ports.epmd };
    Ok(Starting { url: format!("amqp://127.0.0.1:{}", ports.amqp), port: ports.amqp, child, epmd, control })
}

fn write_settings(home: &Path, port: u16) -> Result<(), ServerError> {
    let write = |name: &str, text: String| {
        std::fs::write(home.join(name), text).map_err(ServerError::io(format!("writing {name}")))
    };
    // With relative limits, RabbitMQ blocks publishers on a small disk or machine, which looks like a hang.
    write(
        "rabbitmq.conf",
        format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\ndisk_free_limit.absolute = 50MB\n\
             vm_memory_high_watermark.absolute = 1GB\n"
        ),
    )?;
    write("enabled_plugins", "[].\n".into())
}

fn environment(home: &Path, ports: &Ports) -> Vec<(&'static str, String)> {
    let inside = |name: &str| home.join(name).display().to_string();
    vec![
        ("RABBITMQ_NODENAME", NODE.into()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_NODE_PORT", ports.amqp.to_string()),
        ("RABBITMQ_DIST_PORT", ports.distribution.to_string()),
        ("ERL_EPMD_PORT", ports.epmd.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
        ("RABBITMQ_MNESIA_BASE", inside("data")),
        ("RABBITMQ_LOG_BASE", inside("logs")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("enabled_plugins")),
        // Without its extension: 3.10 appends `.conf` itself.
        ("RABBITMQ_CONFIG_FILE", inside("rabbitmq")),
        ("RABBITMQ_PID_FILE", inside("rabbitmq.pid")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".into()),
        // Makes the script exec the node instead of waiting for it, so that its pid is the node's.
        ("RUNNING_UNDER_SYSTEMD", "1".into()),
    ]
}

/// Without this, Erlang starts an epmd itself, as a daemon that outlives everything.
fn start_epmd(home: &Path, port: u16) -> Result<Child, ServerError> {
    let program = programs::find("epmd", "rabbitmq-server")?;
    let args = ["-port", &port.to_string(), "-address", "127.0.0.1"].map(str::to_owned).to_vec();
    Command { name: "epmd", program: &program, args, env: Vec::new(), home, user: None }.spawn()
}
