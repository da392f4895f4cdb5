//! RabbitMQ's control program, aimed at one private node.

use std::path::PathBuf;
use std::time::Duration;

use super::error::ServerError;
use super::programs;

/// The node's name. Each private node has a separate epmd, so all of them can use the same name.
pub(super) const NODE: &str = "doorbuster@localhost";

/// How long one command may take. It starts a runtime of its own: seconds on a quiet machine, half a minute on a busy one.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What `rabbitmqctl` needs to find its node and authenticate.
pub(super) struct Rabbitmqctl {
    /// The node's HOME, which holds the Erlang cookie.
    pub(super) home: PathBuf,
    pub(super) epmd_port: u16,
}

impl Rabbitmqctl {
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
        let output = tokio::time::timeout(ANSWER_WITHIN, run)
            .await
            .map_err(|_| ServerError::Refused { what: what.clone(), answer: "no answer".into() })?
            .map_err(ServerError::io(what.clone()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(ServerError::Refused { what, answer: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
    }
}
