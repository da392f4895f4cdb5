//! The servers of this test run. A sidecar starts them as its children, and stops them when this process ends, even if
//! it crashes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

pub struct Servers {
    pub redis: String,
    pub rabbitmq: String,
    pub postgres: String,
    pub mariadb: String,
    /// Keeps the sidecar's standard input open: the sidecar stops when it closes.
    _sidecar: Child,
}

pub fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        // In a crowd each buyer has a connection, and this process holds both ends.
        doorbuster::process::raise_file_limit();
        let mut sidecar = Command::new(env!("CARGO_BIN_EXE_doorbuster"))
            .args(["servers", "redis", "rabbitmq", "postgres", "mariadb"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the sidecar starts");
        let mut line = String::new();
        let stdout = sidecar.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("the sidecar prints its servers");
        let printed: serde_json::Value =
            serde_json::from_str(&line).expect("servers as JSON; see above for why they did not start");
        let url = |name: &str| printed[name]["url"].as_str().expect("a URL").to_owned();
        Servers {
            redis: url("redis"),
            rabbitmq: url("rabbitmq"),
            postgres: url("postgres"),
            mariadb: url("mariadb"),
            _sidecar: sidecar,
        }
    })
}
