//! The servers of two installations do not mix: whatever meets a server of another one refuses, names both, and changes
//! nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::servers::Ending;
use uuid::Uuid;

use super::pages::private_redis_behind;
use crate::support::{
    Backup, Buyer, Database, Doorbuster, World, ask_redis, at_rest, buy, everything_is_witnessed,
    private_redis, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);

async fn id_in_redis(world: &World) -> String {
    ask_redis(&world.config().redis.url, &format!("GET {}:installation", world.name)).await
}

/// Every key of the world except leases, as Redis would copy it.
async fn keys(world: &World) -> BTreeMap<String, Vec<u8>> {
    let url = &world.config().redis.url;
    let names: Vec<String> = ask_redis(url, &format!("KEYS {}:*", world.name)).await;
    let mut keys = BTreeMap::new();
    for name in names.into_iter().filter(|name| !name.contains("lease")) {
        let dump: Vec<u8> = ask_redis(url, &format!("DUMP {name}")).await;
        keys.insert(name, dump);
    }
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_servers_of_two_installations_changes_nothing() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    running.stop().await;
    let ours = id_in_redis(&world).await;
    let before = keys(&world).await;

    // Another installation's database, and one that belongs to none yet.
    let other = World::new(Database::Sqlite).await;
    other.parts().await;
    let theirs = other.parts().await.store.installation().await.unwrap().expect("an id").to_string();
    let empty = World::new(Database::Sqlite).await;
    let file = empty.config().database.url.trim_start_matches("sqlite:").to_owned();
    std::fs::File::create(file).unwrap();
    let with = |database: &World| {
        let url = database.config().database.url;
        World::with([world.overrides.clone(), vec![format!("database.url={url}")]].concat())
    };
    let order = orders[0].to_string();
    let commands: [&[&str]; 6] = [
        &["audit", "--all", "--repair", "--yes"],
        &["rebuild", "--sale", sale.id.as_str(), "--yes"],
        &["replay", "run", "log", "--yes"],
        &["order", "cancel", sale.id.as_str(), &order],
        &["sale", "pause", sale.id.as_str()],
        &["migrate"],
    ];
    for command in commands {
        let (code, out, err) = run(Some(&with(&other)), command).await;
        assert_eq!(code, 2, "{command:?}: {out}{err}");
        assert!(err.contains(&ours) && err.contains(&theirs), "{command:?}: {out}{err}");
        let (code, out, err) = run(Some(&with(&empty)), command).await;
        assert_eq!(code, 2, "{command:?}: {out}{err}");
        assert!(
            err.contains(&format!("`doorbuster migrate --installation {ours}`")),
            "{command:?}: {out}{err}"
        );
    }
    let (code, out, err) = run(Some(&with(&empty)), &["doctor"]).await;
    assert!(
        code == 3 && out.contains(&format!("run `doorbuster migrate --installation {ours}`")),
        "{out}{err}"
    );
    for role in [Role::Front, Role::Worker] {
        let refused = Running::start(&with(&other).config(), role).await.err().expect("refused");
        assert!(refused.to_string().contains(&theirs), "{refused}");
    }
    assert_eq!(keys(&world).await, before);
    let there = other.parts().await.store.sales().await.unwrap();
    assert!(there.is_empty(), "{there:?}");

    // A person may say that a database belongs to it.
    let (code, out, err) = run(Some(&with(&empty)), &["migrate", "--installation", &ours]).await;
    assert!(code == 0 && out.contains(&ours), "{out}{err}");
    let (code, out, err) = run(Some(&with(&empty)), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("3 inserted"), "{out}{err}");
    let (code, out, err) = run(Some(&world), &["migrate", "--installation", "nonsense"]).await;
    assert!(code == 2 && err.contains("not the id of an installation"), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_another_installation_is_not_used() {
    let ours = World::new(Database::Sqlite).await;
    let running = ours.running_as(Role::Front).await;
    let sale = sale(&ours.name, 9, 1);
    ours.open_sale(&running.parts, &sale).await;
    // The orders wait in the queue.
    buy(&running, &sale, 0..3).await;
    running.stop().await;
    let mut other = World::new(Database::Sqlite).await;
    other.parts().await;
    other.set(&format!("queue.prefix={}", ours.name)).set("queue.timeout_ms=2000");
    let parts = other.parts().await;
    let theirs = parts.store.installation().await.unwrap().expect("an id").to_string();
    let id = id_in_redis(&ours).await;
    for command in [&["dead-letters", "list"][..], &["replay", "plan", "log"], &["migrate"]] {
        let (code, out, err) = run(Some(&other), command).await;
        assert!(code != 0 && err.contains(&id) && err.contains(&theirs), "{command:?}: {code} {out}{err}");
    }
    let worker = Doorbuster::start(&other, "worker").await;
    // It refuses again with each attempt to connect.
    until("the worker has refused several times", LONG, async || {
        (worker.logged(&theirs).len() >= 2).then_some(())
    })
    .await;
    drop(worker);
    // Our worker gets every order, none of them a second time.
    let running = ours.running().await;
    at_rest(&running, &sale).await;
    let dead = running.parts.dead_letters.as_ref().expect("in a process").depths();
    assert_eq!(dead.map_or(0, |depths| depths.dead), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_front_sells_nothing_in_another_installations_redis() {
    let mut world = World::new(Database::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..3).await;
    let operator = Buyer::operator(&front, doorbuster::front::Role::Viewer);
    let shown = format!("/v1/admin/sales/{}", sale.id);

    // The same prefix and the same sale, in another Redis.
    let mut other = World::with(world.overrides.clone());
    let other_folder = tempfile::tempdir().unwrap();
    let other_redis = private_redis(&mut other, other_folder.path()).await;
    other.set(&format!("database.url=sqlite:{}", other_folder.path().join("other.db").display()));
    other.set(&format!("queue.prefix={}other", world.name));
    let parts = other.parts().await;
    other.open_sale(&parts, &sale).await;
    let (ours, theirs) = (id_in_redis(&world).await, id_in_redis(&other).await);
    assert_ne!(ours, theirs);
    let before = keys(&other).await;
    let at = |url: &str| vec![super::pages::address(url)];
    proxy.point_to(at(&other_redis.url));
    proxy.reset();
    until("the front has met it", LONG, async || {
        let eve = Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await;
        assert_ne!(eve.status, 202, "{}", eve.text);
        assert!(!eve.text.contains(&theirs), "{}", eve.text);
        let why = operator.get(&shown).await.text;
        (eve.status == 503 && why.contains(&theirs) && why.contains(&ours)).then_some(())
    })
    .await;
    assert_eq!(keys(&other).await, before);
    proxy.point_to(at(&redis.url));
    proxy.reset();
    until("the front sells again", LONG, async || {
        (Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await.status == 202).then_some(())
    })
    .await;

    // Redis holds data, but its id is gone: a backup from before it had one, say.
    let _: i64 = ask_redis(&redis.url, &format!("DEL {}:installation", world.name)).await;
    let _: String = ask_redis(&redis.url, "SCRIPT FLUSH").await;
    until("the front refuses", LONG, async || {
        let bob = Buyer::of(&front, "bob").buy(sale.id.as_str(), "k").await;
        (bob.status == 503 && operator.get(&shown).await.text.contains("doorbuster migrate")).then_some(())
    })
    .await;
    let (code, out, err) = run(Some(&world), &["migrate"]).await;
    assert!(code == 0 && out.contains(&ours), "{out}{err}");
    until("the front sells again", LONG, async || {
        (Buyer::of(&front, "bob").buy(sale.id.as_str(), "k").await.status == 202).then_some(())
    })
    .await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
    other_redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_worker_writes_nothing_to_another_installations_database() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let mut sale = sale(&world.name, 20, 1);
    sale.terms.pay_within_s = Some(3_600);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..5).await;
    at_rest(&running, &sale).await;
    let ours = id_in_redis(&world).await;
    let theirs = Uuid::new_v4().to_string();
    let backup = Backup::of(&world);
    backup.make().await;
    backup.execute(&format!("UPDATE installation SET id = '{theirs}'")).await;
    backup.restore().await;
    let ready = || async {
        let answer = Buyer::operator(&running, doorbuster::front::Role::Viewer).get("/readyz").await;
        answer.text
    };
    until("the process says so", LONG, async || {
        let text = ready().await;
        (text.contains(&ours) && text.contains(&theirs)).then_some(())
    })
    .await;
    // The front sells on, and the orders wait.
    let waiting = buy(&running, &sale, 5..8).await;
    for id in &waiting {
        assert!(running.parts.store.order(*id).await.ok().flatten().is_none(), "{id} has a row");
    }
    backup.execute_in_place(&format!("UPDATE installation SET id = '{ours}'")).await;
    until("the orders have rows", LONG, async || {
        for id in &waiting {
            running.parts.store.order(*id).await.ok()??;
        }
        Some(())
    })
    .await;
    running.stop().await;
}

/// A backup of an older build has sales, and no id.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_sales_and_no_id_joins_only_if_a_person_says_so() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    running.stop().await;
    let ours = id_in_redis(&world).await;
    Backup::of(&world).execute_in_place("DELETE FROM installation").await;
    let before = keys(&world).await;
    let joins = format!("`doorbuster migrate --installation {ours}`");
    for command in
        [&["migrate"][..], &["audit", "--all", "--repair", "--yes"], &["replay", "run", "log", "--yes"]]
    {
        let (code, out, err) = run(Some(&world), command).await;
        assert!(code == 2 && err.contains(&joins), "{command:?}: {code} {out}{err}");
    }
    for role in [Role::Front, Role::Worker] {
        let refused = Running::start(&world.config(), role).await.err().expect("refused");
        assert!(refused.to_string().contains(&joins), "{refused}");
    }
    assert_eq!(keys(&world).await, before);
    let (code, out, err) = run(Some(&world), &["migrate", "--installation", &ours]).await;
    assert!(code == 0 && out.contains(&ours), "{out}{err}");
    let running = Running::start(&world.config(), Role::Both).await.unwrap();
    assert_eq!(at_rest(&running, &sale).await.live_orders, 3);
    running.stop().await;
}
