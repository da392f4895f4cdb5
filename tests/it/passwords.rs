//! No password of a server is in what a person sees or a log keeps.

use std::time::Duration;

use tokio::process::Command;

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
        // A front and a worker wait for their servers.
        let mut command = Command::new("timeout");
        command.args(["--signal=TERM", "15", env!("CARGO_BIN_EXE_doorbuster")]).args(args);
        let output = command.args(["--config", config]).kill_on_drop(true).output();
        let output = tokio::time::timeout(Duration::from_secs(60), output).await.expect("it ends").unwrap();
        let seen =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(seen.contains(why), "{args:?}: {seen}");
        assert!(!seen.contains(PASSWORD), "{args:?}: {seen}");
    }
}
