//! The clients in `examples/` do what their page says, against a running front and worker.

use std::path::Path;
use std::process::Stdio;

use crate::support::{Buyer, Database, World, sale};

const SCRIPTS: [&str; 3] = ["order.sh", "order.py", "order.mjs"];

/// Runs a script, and returns its exit code and output.
async fn run(script: &str, url: &str, variables: &[(&str, &str)]) -> (i32, serde_json::Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(script);
    let mut command = tokio::process::Command::new(path);
    command.envs(variables.iter().copied()).env("URL", url).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.unwrap_or_else(|error| panic!("{script} cannot run: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let body =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{script}: {error}: {printed}{errors}"));
    (output.status.code().unwrap_or(-1), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_buys_once_and_learns_that_the_sale_is_sold_out() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, SCRIPTS.len() as i64, 1);
    world.open_sale(&running.parts, &sale).await;
    let url = format!("http://{}", running.buyers.expect("a front"));
    for script in SCRIPTS {
        let token = Buyer::of(&running, script).token;
        let variables = [("SALE", sale.id.as_str()), ("TOKEN", token.as_str()), ("KEY", "a-click")];
        let (code, first) = run(script, &url, &variables).await;
        assert_eq!((code, first["status"].as_str()), (0, Some("confirmed")), "{script}: {first}");
        let (code, again) = run(script, &url, &variables).await;
        assert_eq!((code, &again["order_id"]), (0, &first["order_id"]), "{script}: {again}");
    }
    for script in SCRIPTS {
        let token = Buyer::of(&running, &format!("late-{script}")).token;
        let variables = [("SALE", sale.id.as_str()), ("TOKEN", token.as_str())];
        let (code, refusal) = run(script, &url, &variables).await;
        assert_eq!((code, refusal["code"].as_str()), (3, Some("sold_out")), "{script}: {refusal}");
    }
    running.stop().await;
}
