//! The command line: what it says of wrong configuration, wrong URLs, missing servers and settings
//! that break a promise.

use std::time::Duration;

use crate::support::{Database, Doorbuster, World, run, sale, until};

#[tokio::test(flavor = "multi_thread")]
async fn sales_are_created_and_steered() {
    let world = World::new(Database::Sqlite).await;
    let sale = world.name.as_str();
    let ok = async |args: &[&str]| {
        let (code, out, err) = run(Some(&world), args).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    };
    assert!(ok(&["migrate"]).await.contains("up to date"));
    ok(&["migrate"]).await;
    assert!(ok(&["sale", "list"]).await.contains("no sales yet"));
    ok(&["sale", "create", sale, "--item", "shoe=500", "--item", "bag=3", "--limit", "2"]).await;
    assert_eq!(ok(&["sale", "open", sale]).await, format!("{sale} is open\n"));
    assert_eq!(ok(&["sale", "pause", sale]).await, format!("{sale} is paused\n"));
    assert_eq!(ok(&["sale", "resume", sale]).await, format!("{sale} is open\n"));
    let shown: serde_json::Value =
        serde_json::from_str(&ok(&["sale", "show", sale, "--output", "json"]).await).unwrap();
    assert_eq!((shown["state"].as_str(), shown["items"][1]["left"].as_i64()), (Some("open"), Some(500)));
    assert!(ok(&["sale", "show", sale]).await.contains("shoe"));
    let listed: serde_json::Value =
        serde_json::from_str(&ok(&["sale", "list", "--output", "json"]).await).unwrap();
    assert_eq!(listed["sales"][0]["sale_id"], sale);
    assert_eq!(ok(&["sale", "close", sale]).await, format!("{sale} is closed\n"));

    for (args, expected, says) in [
        (vec!["sale", "open", sale], 1, "a sale that is closed cannot be opened"),
        (vec!["sale", "show", "nowhere"], 1, "there is no sale nowhere"),
        (vec!["sale", "create", sale, "--item", "a=1"], 1, "already exists"),
        (vec!["sale", "create", "x", "--item", "a"], 2, "write it as SKU=STOCK"),
        (vec!["sale", "create", "X!", "--item", "a=1"], 2, "a sale id must be"),
        (vec!["token", "a b"], 2, "a user id must be"),
    ] {
        let (code, _, err) = run(Some(&world), &args).await;
        assert_eq!(code, expected, "{args:?}: {err}");
        assert!(err.contains(says) && err.lines().count() == 1, "{args:?}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_the_configuration_are_told_together_and_nothing_starts() {
    let (code, _, err) = run(
        None,
        &["front", "--set", "worker.bach=3", "--set", "redis.url=http://x", "--set", "gate.batch=0"],
    )
    .await;
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("worker.bach is not a key; did you mean worker.batch?"), "{err}");
    let (code, _, err) = run(None, &["front", "--set", "redis.url=http://x", "--set", "gate.batch=0"]).await;
    assert_eq!(code, 2, "{err}");
    for says in [
        "redis.url is \"http://x\"; it must begin with redis://",
        "gate.batch is 0; it must be 1 to 256",
        "auth.jwks",
    ] {
        assert!(err.contains(says), "{says:?} is not in {err}");
    }
    let (code, _, err) = run(None, &["front", "--config", "/nonexistent.toml"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("/nonexistent.toml"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_missing_is_named_by_what_needs_it_at_once() {
    let mut world = World::new(Database::Sqlite).await;
    world.parts().await;
    world.set("redis.url=redis://127.0.0.1:1").set("redis.timeout_ms=200");
    let (code, _, err) = run(Some(&world), &["sale", "show", "x"]).await;
    assert_eq!(code, 1);
    assert!(err.contains("there is no sale x"), "the database answers first: {err}");
    let mut world = World::new(Database::Sqlite).await;
    world.set("database.url=mysql://root@127.0.0.1:1/none").set("database.timeout_ms=500");
    let (code, _, err) = run(Some(&world), &["migrate"]).await;
    assert_eq!(code, 1);
    assert!(err.contains("the database"), "{err}");
    let (code, _, err) = run(None, &["health", "127.0.0.1:1"]).await;
    assert_eq!(code, 1);
    assert!(err.contains("127.0.0.1:1"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_is_refused_with_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let server = doorbuster::rehearsal::servers::Server::start(
        doorbuster::rehearsal::servers::Kind::Redis,
        folder.path(),
    )
    .await
    .expect("a Redis");
    let client = redis::Client::open(server.url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut world = World::new(Database::Sqlite).await;
    world.set(&format!("redis.url={}", server.url));
    world.parts().await;
    for (setting, bad, good) in [
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("appendonly", "no", "yes"),
    ] {
        let () =
            redis::cmd("CONFIG").arg("SET").arg(setting).arg(bad).query_async(&mut connection).await.unwrap();
        let (code, _, err) = run(Some(&world), &["front"]).await;
        assert_eq!(code, 1, "{err}");
        assert!(
            err.contains(&format!("redis has {setting} = {bad}"))
                && err.contains(&format!("set it to {good}")),
            "{err}"
        );
        let () = redis::cmd("CONFIG")
            .arg("SET")
            .arg(setting)
            .arg(good)
            .query_async(&mut connection)
            .await
            .unwrap();
    }
    // While it runs, the settings are looked at again when another Redis answers.
    let front = Doorbuster::start(&world, "front").await;
    let health = front.operations.to_string();
    until("healthy", Duration::from_secs(30), async || {
        Some(run(None, &["health", &health]).await).filter(|(code, ..)| *code == 0)
    })
    .await;
    server.stop(doorbuster::rehearsal::servers::Ending::AtOnce).await;
    until("no longer healthy", Duration::from_secs(30), async || {
        Some(run(None, &["health", &health]).await).filter(|(code, ..)| *code == 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_is_said() {
    let world = World::new(Database::Sqlite).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, err) = run(Some(&world), &["front", "--set", &format!("front.listen={address}")]).await;
    assert_eq!(code, 1);
    assert!(err.contains(&format!("front cannot listen on {address}")), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_without_a_key_asks_for_those_of_the_login() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("auth.secret=");
    let (code, _, err) = run(Some(&world), &["front"]).await;
    assert!(code == 2 && err.contains("no key verifies tokens: set auth.jwks"), "{code} {err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shown_configuration_hides_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets.toml");
    let url_file = folder.path().join("redis");
    std::fs::write(&url_file, "rediss://:hunter2@cache\n").unwrap();
    let secrets = format!(
        "[auth]\nsecret = \"0123456789abcdef0123456789abcdef\"\njwks = \"https://shop:hunter2@login/keys\"\n[redis]\nurl_file = {:?}\n[database]\nurl = \
         \"postgres://h/d?user=a&password=hunter2&sslmode=require\"\n",
        url_file.display().to_string()
    );
    std::fs::write(&file, secrets).unwrap();
    let (code, out, err) = run(None, &["config", "show", "--config", file.to_str().unwrap()]).await;
    assert_eq!(code, 0, "{err}");
    assert!(!out.contains("hunter2") && !out.contains("0123456789abcdef"), "{out}");
    for shown in ["[worker]", "rediss://:***@cache", "password=***"] {
        assert!(out.contains(shown), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_to_another_host_is_refused_unless_it_is_named() {
    let away = [
        "--set",
        "redis.url=redis://cache",
        "--set",
        "queue.url=amqp://rabbit",
        "--set",
        "database.url=postgres://db/shop",
        "--set",
        "operations.listen=0.0.0.0:9090",
    ];
    let (code, _, err) = run(None, &[&["config", "show"][..], &away].concat()).await;
    assert_eq!(code, 2, "{err}");
    for says in ["rediss://", "amqps://", "sslmode=verify-full", "operations.exposed = true", "4 mistakes"] {
        assert!(err.contains(says), "{says:?} is not in {err}");
    }
    let named = ["--set", "process.plaintext_hosts=cache, rabbit,db", "--set", "operations.exposed=true"];
    let (code, _, err) = run(None, &[&["config", "show"][..], &away, &named].concat()).await;
    assert_eq!(code, 0, "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_on_the_command_line_is_refused_and_not_repeated() {
    for pair in [
        "auth.secret=hunter2hunter2hunter2hunter2hunter2",
        "payments.secrets=acme whsec_hunter2",
        "traces.headers=Authorization: Bearer hunter2",
        "redis.url=redis://:hunter2@cache",
        "queue.url=amqp://shop:hunter2@rabbit",
        "database.url=postgres://db/shop?password=hunter2",
        "auth.jwks=https://shop:hunter2@login/keys",
    ] {
        let (code, out, err) = run(None, &["config", "show", "--set", pair]).await;
        assert_eq!(code, 2, "{pair}: {out}{err}");
        let key = pair.split('=').next().unwrap();
        let has_file = key != "auth.jwks";
        assert_eq!(err.contains(&format!("{key}_file")), has_file, "{err}");
        assert!(err.contains("DOORBUSTER__"), "{err}");
        assert!(!err.contains("hunter2"), "{err}");
    }
}

/// The script that `make demo` and `make test` begin with, on a machine where `programs` is all there is.
async fn install(programs: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    for program in programs {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|path| path.join(program))
            .find(|path| path.is_file());
        std::os::unix::fs::symlink(found.expect("a usual program"), folder.path().join(program)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/install-servers");
    let output = tokio::process::Command::new("/bin/sh")
        .args([script, "demo"])
        .env("PATH", folder.path())
        .output()
        .await
        .unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_be_installed_the_commands_are_said() {
    let (code, says) = install(&["id", "tr", "cat", "mktemp", "rm"]).await;
    assert_eq!(code, 78, "{says}");
    for line in [
        "missing: redis",
        "There is no apt-get here",
        "apt-get install --no-install-recommends redis-server",
        "dnf install redis",
        "brew install redis",
    ] {
        assert!(says.contains(line), "{line:?} is not in {says}");
    }
    let (code, says) = install(&["id", "tr", "redis-server"]).await;
    assert_eq!((code, says.as_str()), (0, ""), "nothing is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_program_that_is_not_installed_is_named() {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_doorbuster"))
        .args(["dev", "--ephemeral"])
        .env("PATH", "/nonexistent")
        .output()
        .await
        .unwrap();
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("redis-server is not installed"), "{says}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_of_each_server_has_its_own_answer() {
    let world = World::new(Database::Sqlite).await;
    for (pair, says) in [
        ("redis.url=redis://h:port", "redis.url cannot be read"),
        ("queue.url=amqp://h:port", "queue.url cannot be read"),
        ("database.url=postgres://h:port/d", "database.url cannot be read"),
    ] {
        let (code, _, err) = run(Some(&world), &["front", "--set", pair]).await;
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(says), "{err}");
    }
    // A server of another kind answers there: nothing is taken, and readiness says what is wrong.
    let mut world = World::new(Database::Sqlite).await;
    let broker = world.config().queue.url.replace("amqp://", "redis://");
    world.set(&format!("redis.url={broker}")).set("redis.timeout_ms=300");
    let front = Doorbuster::start(&world, "front").await;
    let health = front.operations.to_string();
    until("unavailable", Duration::from_secs(30), async || {
        let (code, out, _) = run(None, &["health", &health]).await;
        (code == 1 && out.contains("\"unavailable\"") && out.contains("redis")).then_some(())
    })
    .await;
}

/// It says which server it is, where it was looked for, and which setting names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_names_the_server_that_is_away() {
    let ready = World::new(Database::Sqlite).await;
    let running = ready.running().await;
    let sale = sale(&ready.name, 3, 1);
    ready.open_sale(&running.parts, &sale).await;
    running.stop().await;
    let (redis, broker) = ("redis.url=redis://127.0.0.1:1", "queue.url=amqp://127.0.0.1:1");
    let database = "database.url=postgres://root@127.0.0.1:1/none";
    for (pair, command) in [
        (redis, &["audit", "--sale", sale.id.as_str()][..]),
        (redis, &["audit", "--all"]),
        (broker, &["dead-letters", "list"]),
        (database, &["audit", "--sale", sale.id.as_str()]),
        (database, &["audit", "--all"]),
    ] {
        let mut world = World::with(ready.overrides.clone());
        world.set(pair).set("database.timeout_ms=1000");
        let (code, out, err) = run(Some(&world), command).await;
        assert_eq!(code, 1, "{command:?}: {out}{err}");
        let key = pair.split('=').next().unwrap();
        assert!(err.contains(&format!("is it running, and is {key} right?")), "{command:?}: {err}");
        assert!(pair == database || err.contains("127.0.0.1:1: "), "{command:?}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_are_printed_for_each_shell() {
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef doorbuster"), ("fish", "complete -c doorbuster")]
    {
        let (code, out, err) = run(None, &["completions", shell]).await;
        assert!(code == 0 && out.contains(part) && out.contains("dead-letters"), "{shell}: {out}{err}");
    }
    assert_eq!(run(None, &["completions", "tcsh"]).await.0, 2);
}

/// As with `| head -1`: it prints the name of each file that it has written.
#[test]
fn a_reader_that_has_enough_neither_ends_a_command_half_way_nor_changes_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let into = |name: &str| folder.path().join(name);
    let written = |name: &str| std::fs::read_dir(into(name)).unwrap().count();
    let start = |name: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbuster"));
        let command = command.args(["init", "systemd", "--into"]).arg(into(name));
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    assert!(start("read").wait_with_output().unwrap().status.success());
    let mut unread = start("unread");
    drop(unread.stdout.take());
    assert_eq!(unread.wait().unwrap().code(), Some(0));
    assert!(written("unread") > 1 && written("unread") == written("read"), "{}", written("unread"));
}
