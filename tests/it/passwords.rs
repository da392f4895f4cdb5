//! No password of a server is in what a person sees or a log keeps.

use std::time::Duration;

use tokio::process::Command;

use crate::support::until;

const LONG: Duration = Duration::from_secs(60);
const PASSWORD: &str = "hunter2";

/// With servers that cannot be reached, so that the errors name them.
#[tokio::test]
async fn no_error_and_no_line_of_the_log_has_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doorbuster.toml");
    let settings = format!(
        "[auth]\nsecret = \"0123456789abcdef0123456789abcdef\"\n\
         [front]\nlisten = \"127.0.0.1:0\"\n[operations]\nlisten = \"127.0.0.1:0\"\n\
         [redis]\ntimeout_ms = 200\nurl = \"redis://:{PASSWORD}@127.0.0.1:1\"\n\
         [queue]\ntimeout_ms = 500\nurl = \"amqp://shop:{PASSWORD}@127.0.0.1:1\"\n\
         [database]\ntimeout_ms = 500\nurl = \"postgres://127.0.0.1:1/shop?user=shop&password={PASSWORD}\"\n"
    );
    std::fs::write(&file, settings).unwrap();
    let config = file.to_str().unwrap();
    let address = "127.0.0.1:1";
    for (args, why) in [
        (&["doctor"][..], address),
        (&["migrate"], address),
        (&["lease", "list"], address),
        (&["front"], address),
        (&["sale", "list"], "is database.url right?"),
        (&["sale", "show", "shoes"], "is database.url right?"),
        (&["dead-letters", "list"], "the id of this installation is not known"),
        (&["worker"], "the id of this installation is not known"),
    ] {
        let log = folder.path().join("log");
        let into = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
        command.args(args).args(["--config", config]).stdout(into.try_clone().unwrap()).stderr(into);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let seen = || std::fs::read_to_string(&log).unwrap();
        until(&format!("{args:?} says {why}"), LONG, async || seen().contains(why).then_some(())).await;
        // These wait for their servers; everything else goes on to its end.
        if let (["front"] | ["worker"], Some(pid)) = (args, child.id()) {
            assert!(std::process::Command::new("kill").arg(pid.to_string()).status().unwrap().success());
        }
        tokio::time::timeout(LONG, child.wait()).await.expect("it ends").unwrap();
        let seen = seen();
        assert!(!seen.contains(PASSWORD), "{args:?}: {seen}");
    }
}
