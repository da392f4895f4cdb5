//! The login replaces its keys while people buy: nobody is logged out, and a withdrawn key is worth nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbuster::process::{Role, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Answer, Buyer, Database, LoginKey, World, sale, until};

/// As a careful program replaces a file: whole, or not at all.
fn publish(path: &Path, keys: &[&LoginKey]) {
    let new = path.with_extension("new");
    std::fs::write(&new, LoginKey::set_of(keys)).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// A front that takes tokens of the login alone, with an open sale; and the path of its orders.
async fn front(jwks: &str, every_s: u32) -> (World, Running, String) {
    let mut world = World::new(Database::Sqlite).await;
    world.set("auth.secret=").set(&format!("auth.jwks={jwks}")).set(&format!("auth.jwks_every_s={every_s}"));
    let running = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 100_000, 1);
    world.open_sale(&running.parts, &sale).await;
    let path = format!("/v1/sales/{}/orders", sale.id);
    (world, running, path)
}

async fn post(running: &Running, path: &str, token: String) -> Answer {
    Buyer { at: running.buyers.expect("a front"), token }.post(path, &[], "").await
}

/// The login during a rush: the key that it signs with, how many orders were placed with that key, and whether it is over.
struct Login {
    signs: Mutex<Arc<LoginKey>>,
    bought: AtomicU32,
    is_over: AtomicBool,
}

impl Login {
    /// Signs with this key from now on.
    fn sign_with(&self, key: &Arc<LoginKey>) {
        *self.signs.lock().unwrap() = key.clone();
        self.bought.store(0, Ordering::Relaxed);
    }

    /// Returns once many have bought with the present key.
    async fn many_have_bought(&self) {
        until("many buy with the present key", Duration::from_secs(60), async || {
            (self.bought.load(Ordering::Relaxed) > 50).then_some(())
        })
        .await;
    }

    /// Buys with one new user after the other until the rush is over.
    async fn rush(&self, running: &Running, path: &str) {
        static BUYER: AtomicU32 = AtomicU32::new(0);
        while !self.is_over.load(Ordering::Relaxed) {
            let key = self.signs.lock().unwrap().clone();
            let user = format!("user{}", BUYER.fetch_add(1, Ordering::Relaxed));
            let answer = post(running, path, key.token(&user)).await;
            assert_eq!(answer.status, 202, "signed with {}: {}", key.kid, answer.text);
            self.bought.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_in_a_rush_logs_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let keys = ["a", "b", "c"].map(|kid| Arc::new(LoginKey::new(kid)));
    publish(&file, &[&keys[0]]);
    // An hour: only a token with an unknown key has the set read again.
    let (_world, running, path) = front(file.to_str().unwrap(), 3_600).await;
    let login = Login {
        signs: Mutex::new(keys[0].clone()),
        bought: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
    };
    let rotations = async {
        login.many_have_bought().await;
        for pair in keys.windows(2) {
            publish(&file, &[&pair[0], &pair[1]]);
            login.sign_with(&pair[1]);
            login.many_have_bought().await;
            publish(&file, &[&pair[1]]);
        }
        login.is_over.store(true, Ordering::Relaxed);
    };
    let buyers = futures_util::future::join_all((0..8).map(|_| login.rush(&running, &path)));
    tokio::join!(buyers, rotations);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_key_is_worth_nothing_and_a_broken_set_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let (old, new) = (LoginKey::new("old"), LoginKey::new("new"));
    publish(&file, &[&old]);
    let (_world, running, path) = front(file.to_str().unwrap(), 1).await;
    let remembered = old.token("ada");
    assert_eq!(post(&running, &path, remembered.clone()).await.status, 202);
    for broken in ["", "{", "{\"keys\":[]}", "[]", "{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}]}"] {
        std::fs::write(&file, broken).unwrap();
        // A token of a key that is not known has the set read now.
        assert_eq!(post(&running, &path, new.token("eve")).await.code(), "unauthenticated", "{broken}");
        assert_eq!(post(&running, &path, remembered.clone()).await.status, 202, "{broken}");
    }
    publish(&file, &[&new]);
    assert_eq!(post(&running, &path, new.token("bob")).await.status, 202);
    let answer = post(&running, &path, remembered).await;
    assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{}", answer.text);
    running.stop().await;
}

/// Nobody names an unknown key here, which would have the set read at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_key_is_noticed_without_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let (old, new) = (LoginKey::new("old"), LoginKey::new("new"));
    publish(&file, &[&old]);
    let (_world, running, path) = front(file.to_str().unwrap(), 1).await;
    let token = old.token("ada");
    assert_eq!(post(&running, &path, token.clone()).await.status, 202);
    publish(&file, &[&new]);
    let answer = until("the set is read again", Duration::from_secs(20), async || {
        Some(post(&running, &path, token.clone()).await).filter(|answer| answer.status >= 400)
    })
    .await;
    assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{}", answer.text);
    running.stop().await;
}

/// Serves the set over HTTP, while it is given one, and counts how often it was asked for. Each answer takes so long.
async fn login_server(set: Arc<Mutex<Option<String>>>, takes: Duration) -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = stream.read(&mut [0; 4_096]).await;
            tokio::time::sleep(takes).await;
            let answer = match set.lock().unwrap().clone() {
                Some(set) => format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{set}",
                    set.len()
                ),
                None => "HTTP/1.1 500 Away\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (at, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_away_delays_buyers_and_refuses_none() {
    let key = LoginKey::new("a");
    let set = Arc::new(Mutex::new(None));
    let (login, asked) = login_server(set.clone(), Duration::ZERO).await;
    let (_world, running, path) = front(&format!("http://{login}/keys"), 3_600).await;
    let answer = post(&running, &path, key.token("ada")).await;
    assert_eq!((answer.status, answer.code()), (503, "keys_unavailable"), "{}", answer.text);
    assert_eq!(answer.headers["retry-after"], "1");
    *set.lock().unwrap() = Some(LoginKey::set_of(&[&key]));
    until("the keys are read", Duration::from_secs(20), async || {
        let answer = post(&running, &path, key.token("ada")).await;
        assert!([202, 503].contains(&answer.status), "{}", answer.text);
        (answer.status == 202).then_some(())
    })
    .await;
    // From then on the login may be away, and a stranger who names new keys does not pass on to it.
    *set.lock().unwrap() = None;
    let (before, stranger, began) =
        (asked.load(Ordering::Relaxed), LoginKey::new("x"), std::time::Instant::now());
    let strangers = (0..50).map(|nth| post(&running, &path, stranger.token(&format!("eve{nth}"))));
    for answer in futures_util::future::join_all(strangers).await {
        assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{}", answer.text);
    }
    assert_eq!(post(&running, &path, key.token("bob")).await.status, 202);
    let (passed, readings) = (began.elapsed().as_secs(), asked.load(Ordering::Relaxed) - before);
    assert!(u64::from(readings) <= passed + 2, "{readings} readings in {passed} s");
    running.stop().await;
}

/// A stranger has the set read, and hangs up meanwhile. A buyer with the login's newest key waits for the same reading.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_while_the_keys_are_read_logs_nobody_out() {
    let (old, new, none) = (LoginKey::new("old"), LoginKey::new("new"), LoginKey::new("none"));
    let set = Arc::new(Mutex::new(Some(LoginKey::set_of(&[&old]))));
    let (login, asked) = login_server(set.clone(), Duration::from_millis(700)).await;
    let (_world, running, path) = front(&format!("http://{login}/keys"), 3_600).await;
    assert_eq!(post(&running, &path, old.token("ada")).await.status, 202);
    *set.lock().unwrap() = Some(LoginKey::set_of(&[&old, &new]));
    let before = asked.load(Ordering::Relaxed);

    let mut stranger = TcpStream::connect(running.buyers.unwrap()).await.unwrap();
    let token = none.token("eve");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\n\r\n"
    );
    stranger.write_all(request.as_bytes()).await.unwrap();
    // The front waits a second before it reads the set again, so the stranger is first and the buyer asks before it begins.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let hangs_up = async {
        until("the set is asked for", Duration::from_secs(20), async || {
            (asked.load(Ordering::Relaxed) > before).then_some(())
        })
        .await;
        drop(stranger);
    };
    let (bought, ()) = tokio::join!(post(&running, &path, new.token("bob")), hangs_up);
    assert_eq!(bought.status, 202, "{}", bought.text);
    // One that they share, unless the buyer was slow.
    assert!((1..=2).contains(&(asked.load(Ordering::Relaxed) - before)));
    running.stop().await;
}
