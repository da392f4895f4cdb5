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

/// The blocks of JavaScript in docs/integrate.md, with what a browser has and Node has not.
fn script_of_the_page() -> String {
    let page = include_str!("../../docs/integrate.md");
    let blocks: Vec<&str> =
        page.split("```js\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 2, "order and follow");
    let browser = "globalThis.sessionStorage = {};\n\
                   const real = fetch;\n\
                   globalThis.fetch = (path, options) => real(process.env.URL + path, options);\n";
    let buyer = r#"
        const { SALE, TOKEN } = process.env;
        const heard = async (promise) => promise.then(() => "nothing", (problem) => problem.code);
        const placed = await order(SALE, TOKEN, () => {});
        const kept = Object.keys(sessionStorage).length;
        const states = [];
        await new Promise((resume) =>
          follow(placed, TOKEN, (now) => { if (states.push(now.status) && now.status === "confirmed") resume(); }));
        console.log(JSON.stringify({
          kept,
          states,
          again: await heard(order(SALE, TOKEN, () => {})),
          stranger: await heard(order(SALE, "nonsense", () => {})),
          key: Object.keys(sessionStorage).length,
          follower: await heard(follow(placed, "nonsense", () => {})),
        }));
        process.exit(0);
    "#;
    format!("{browser}{}{buyer}", blocks.join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_of_the_page_for_shops_orders_and_follows() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let token = Buyer::of(&running, "ada").token;
    let output = tokio::process::Command::new("node")
        .args(["--input-type=module", "--eval", &script_of_the_page()])
        .env("URL", format!("http://{}", running.buyers.expect("a front")))
        .envs([("SALE", sale.id.as_str()), ("TOKEN", token.as_str())])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(std::time::Duration::from_secs(60), output).await.expect("in time").unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}{errors}"));
    assert_eq!(said["kept"], 0, "a decided click has no key any more: {said}");
    assert_eq!(
        said["states"].as_array().and_then(|states| states.last()),
        Some(&"confirmed".into()),
        "{said}"
    );
    assert_eq!((&said["again"], &said["stranger"]), (&"already_ordered".into(), &"unauthenticated".into()));
    assert_eq!(said["key"], 1, "it is kept until the buyer has logged in: {said}");
    assert_eq!(said["follower"], "unauthenticated", "{said}");
    running.stop().await;
}
