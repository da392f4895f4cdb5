//! A private RabbitMQ node with an epmd of its own, so that nothing is left behind and no other
//! node of this machine is met.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::child::{Command, end_leftover};
use super::{Child, Kind, Server, ServerError, folder, ports, programs};

/// It takes 4 to 10 s on a quiet machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A node that has been started and does not answer yet.
pub struct Starting {
    /// Where it will answer.
    pub url: String,
    port: u16,
    child: Child,
    epmd: Child,
    control: Control,
}

impl Starting {
    /// Returns when it answers.
    pub async fn ready(self) -> Result<Server, ServerError> {
        let ready = |answer: &[u8]| answer.first() == Some(&1);
        ports::until_ready(&self.child, self.port, b"AMQP\x00\x00\x09\x01", ready, LIMIT).await?;
        Ok(Server {
            kind: Kind::Rabbitmq,
            url: self.url,
            child: self.child,
            helpers: vec![self.epmd],
            control: Some(self.control),
        })
    }
}

/// What `rabbitmqctl` needs to find this node and to be let in.
pub(super) struct Control {
    home: PathBuf,
    epmd_port: u16,
}

impl Control {
    pub(super) async fn run(&self, arguments: &[&str]) -> Result<(), ServerError> {
        let what = format!("rabbitmqctl {}", arguments.join(" "));
        let program = programs::rabbitmq()?.with_file_name("rabbitmqctl");
        let run = tokio::process::Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("RABBITMQ_NODENAME", NODE)
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .current_dir(&self.home)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(20), run)
            .await
            .map_err(|_| ServerError::Refused { what: what.clone(), said: "no answer".into() })?
            .map_err(ServerError::io(what.clone()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(ServerError::Refused { what, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
    }
}

const NODE: &str = "doorbuster@localhost";

pub(super) async fn begin(home: &Path) -> Result<Starting, ServerError> {
    let program = programs::rabbitmq()?;
    let epmd_home = home.join("epmd");
    folder::private(&epmd_home)?;
    end_leftover(home).await;
    end_leftover(&epmd_home).await;
    let (port, distribution, epmd_port) = (ports::free()?, ports::free()?, ports::free()?);
    let epmd = start_epmd(&epmd_home, epmd_port)?;
    let write = |name: &str, text: String| {
        std::fs::write(home.join(name), text).map_err(ServerError::io(format!("writing {name}")))
    };
    // The absolute limits keep a small disk or a small machine from looking like a hang.
    write(
        "rabbitmq.conf",
        format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\ndisk_free_limit.absolute = 50MB\n\
             vm_memory_high_watermark.absolute = 1GB\n"
        ),
    )?;
    write("enabled_plugins", "[].\n".into())?;
    let inside = |name: &str| home.join(name).display().to_string();
    let env = vec![
        ("RABBITMQ_NODENAME", NODE.into()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", distribution.to_string()),
        ("ERL_EPMD_PORT", epmd_port.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
        ("RABBITMQ_MNESIA_BASE", inside("data")),
        ("RABBITMQ_LOG_BASE", inside("logs")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("enabled_plugins")),
        // Without the ending: 3.10 adds `.conf` itself.
        ("RABBITMQ_CONFIG_FILE", inside("rabbitmq")),
        ("RABBITMQ_PID_FILE", inside("rabbitmq.pid")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".into()),
        // The script then becomes the node instead of waiting for it: its pid is the node's.
        ("RUNNING_UNDER_SYSTEMD", "1".into()),
    ];
    let child =
        Command { name: "rabbitmq-server", program: &program, args: Vec::new(), env, home, user: None }
            .spawn()?;
    let control = Control { home: home.to_owned(), epmd_port };
    Ok(Starting { url: format!("amqp://127.0.0.1:{port}"), port, child, epmd, control })
}

/// Erlang would start one by itself, as a daemon that outlives everything.
fn start_epmd(home: &Path, port: u16) -> Result<Child, ServerError> {
    let program = programs::find("epmd", "rabbitmq-server")?;
    let args = ["-port", &port.to_string(), "-address", "127.0.0.1"].map(str::to_owned).to_vec();
    Command { name: "epmd", program: &program, args, env: Vec::new(), home, user: None }.spawn()
}
