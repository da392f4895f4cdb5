//! Tokens: whose are accepted, for how long, and with which rights.

use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::front::{AuthSettings, Role, Signer};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::hostile::with_open_sale;
use crate::support::{Buyer, Database, Doorbuster, LoginKey, World, id, request};

#[tokio::test(flavor = "multi_thread")]
async fn a_login_may_sign_with_ed25519_and_each_key_verifies_one_algorithm() {
    let login = LoginKey::new("login");
    let (key, x) = (&login.key, login.x());
    let public_key = format!("auth.public_key={x}");
    let (world, running, path) = with_open_sale(&[&public_key]).await;
    let config = world.config();
    let now = Millis::now().0 / 1000;
    let claims = |user: &str, exp: i64| json!({"sub":user,"iss":config.auth.issuer,"aud":config.auth.audience,"exp":exp,"nbf":now - 10});
    let sign = |claims: &serde_json::Value, algorithm, key: &EncodingKey| {
        jsonwebtoken::encode(&Header::new(algorithm), claims, key).unwrap()
    };
    let at = running.buyers.unwrap();
    let post = async |token: String| Buyer { at, token }.post(&path, &[], "").await;
    let signed = sign(&claims("ada", now + 600), Algorithm::EdDSA, key);
    for _ in 0..2 {
        let answer = post(signed.clone()).await;
        assert!([200, 202].contains(&answer.status), "{}", answer.text);
    }
    let secret = EncodingKey::from_secret(config.auth.secret.as_bytes());
    let answer = post(sign(&claims("bob", now + 600), Algorithm::HS256, &secret)).await;
    assert_eq!(answer.status, 202, "the shared secret is accepted as well: {}", answer.text);
    let stranger = LoginKey::new("stranger").key;
    // The public key is known to everyone who reads the JWK, so it must not work as an HMAC secret.
    let as_secret = EncodingKey::from_secret(x.as_bytes());
    let raw = base64::Engine::decode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, x).unwrap();
    for (what, token) in [
        ("another key", sign(&claims("eve", now + 600), Algorithm::EdDSA, &stranger)),
        ("the public key as a secret", sign(&claims("eve", now + 600), Algorithm::HS256, &as_secret)),
        (
            "the public key's bytes as a secret",
            sign(&claims("eve", now + 600), Algorithm::HS256, &EncodingKey::from_secret(&raw)),
        ),
        ("expired", sign(&claims("eve", now - 60), Algorithm::EdDSA, key)),
    ] {
        let answer = post(token).await;
        assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{what}: {}", answer.text);
    }
    running.stop().await;
}

/// Each signs with the key of its kind, and another key of that kind is worth nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_may_sign_with_each_algorithm_of_its_set() {
    let keys = [LoginKey::new("ed"), LoginKey::es256("ec"), LoginKey::rs256("rsa")];
    let strangers = [LoginKey::new("ed"), LoginKey::es256("ec"), LoginKey::rs256("rsa")];
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("jwks.json");
    std::fs::write(&set, LoginKey::set_of(&keys.each_ref())).unwrap();
    let jwks = format!("auth.jwks={}", set.display());
    let (_world, running, path) = with_open_sale(&["auth.secret=", &jwks]).await;
    let at = running.buyers.unwrap();
    let post = async |token: String| Buyer { at, token }.post(&path, &[], "").await;
    for (key, stranger) in keys.iter().zip(&strangers) {
        let answer = post(key.token(key.kid)).await;
        assert_eq!(answer.status, 202, "{}: {}", key.kid, answer.text);
        let answer = post(stranger.token("eve")).await;
        assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{}: {}", key.kid, answer.text);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_valid_token_is_refused_once_it_expires() {
    let (world, running, path) = with_open_sale(&["auth.leeway_s=0"]).await;
    let config = world.config();
    let now = Millis::now().0 / 1000;
    let claims =
        json!({"sub":"ada","iss":config.auth.issuer,"aud":config.auth.audience,"exp":now + 3,"nbf":now - 10});
    let key = EncodingKey::from_secret(config.auth.secret.as_bytes());
    let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
    let buyer = Buyer { at: running.buyers.unwrap(), token };
    let answer = buyer.post(&path, &[], "").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    crate::support::until("the token is refused", Duration::from_secs(20), async || {
        let answer = buyer.post(&path, &[], "").await;
        assert!([200, 202, 401].contains(&answer.status), "{}", answer.text);
        (answer.status == 401).then_some(())
    })
    .await;
    assert!(Millis::now().0 / 1000 >= now + 3, "it is not refused early");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_expired_forged_and_unsigned_tokens_are_refused() {
    let (world, running, path) = with_open_sale(&[]).await;
    let config = world.config();
    let now = Millis::now().0 / 1000;
    let claims =
        json!({"sub":"ada","iss":config.auth.issuer,"aud":config.auth.audience,"exp":now + 600,"nbf":now});
    let secret = config.auth.secret.as_bytes();
    let sign = |claims: &serde_json::Value, algorithm, secret: &[u8]| {
        jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(secret)).unwrap()
    };
    let changed = |name: &str, value: serde_json::Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        sign(&claims, Algorithm::HS256, secret)
    };
    let without = |name: &str| {
        let mut claims = claims.clone();
        claims.as_object_mut().unwrap().remove(name);
        sign(&claims, Algorithm::HS256, secret)
    };
    let good = sign(&claims, Algorithm::HS256, secret);
    let (_, rest) = good.split_once('.').unwrap();
    let (payload, _) = rest.split_once('.').unwrap();
    // {"alg":"none","typ":"JWT"}
    let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
    let other = Signer::new(AuthSettings {
        secret: "another secret, also long enough for HS256".into(),
        ..config.auth()
    });
    for (what, token) in [
        ("expired", changed("exp", (now - 60).into())),
        ("not valid yet", changed("nbf", (now + 600).into())),
        ("of another issuer", changed("iss", "other".into())),
        ("for another audience", changed("aud", "other".into())),
        ("a sub with a space", changed("sub", "a b".into())),
        ("a sub with a control character", changed("sub", "a\u{0}b".into())),
        ("an empty sub", changed("sub", "".into())),
        ("without sub", without("sub")),
        ("without exp", without("exp")),
        ("without nbf", without("nbf")),
        ("without aud", without("aud")),
        ("HS384", sign(&claims, Algorithm::HS384, secret)),
        ("forged", other.mint(&id("ada"), None, 600)),
        ("alg none", unsigned),
        ("garbage", "garbage".into()),
        ("empty", String::new()),
    ] {
        let answer = Buyer { at: running.buyers.unwrap(), token }.post(&path, &[], "").await;
        assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{what}: {}", answer.text);
    }
    for header in [vec![], vec![("authorization", "Basic YTpi")], vec![("authorization", "Bearer")]] {
        let answer = request(running.buyers.unwrap(), "POST", &path, &header, b"").await;
        assert_eq!((answer.status, answer.code()), (401, "unauthenticated"), "{header:?}");
    }
    // The shop's own roles and further audiences do not make a token invalid.
    for token in [
        changed(&config.auth.role_claim, "customer".into()),
        changed("aud", json!(["shop", config.auth.audience])),
    ] {
        let answer = Buyer { at: running.buyers.unwrap(), token }.get(&format!("{path}/mine")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let answer = Buyer { at: running.buyers.unwrap(), token: good }.post(&path, &[], "").await;
    assert_eq!(answer.status, 202, "the same claims with a valid signature: {}", answer.text);
    running.stop().await;
}

/// A shop's login knows roles of its own. An administrator of its back office is only a buyer here.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_buyers_has_no_right_of_an_operator_whatever_it_says() {
    let (world, running, path) = with_open_sale(&[]).await;
    let config = world.config().auth();
    let now = Millis::now().0 / 1000;
    let sign = |audience: Value, role_claim: &str| {
        let claims = json!({
            "sub": "mallory", "iss": config.issuer, "aud": audience, "exp": now + 600, "nbf": now, role_claim: "admin",
        });
        let key = EncodingKey::from_secret(config.secret.as_bytes());
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
    };
    let (buyers, operators) = (&config.audience, &config.operators_audience);
    for (audience, role_claim, answered) in [
        (json!(buyers), "role", (401, "unauthenticated")),
        (json!(buyers), config.role_claim.as_str(), (401, "unauthenticated")),
        (json!([buyers, "shop"]), config.role_claim.as_str(), (401, "unauthenticated")),
        (json!(operators), "role", (403, "forbidden")),
        (json!(operators), config.role_claim.as_str(), (200, "")),
    ] {
        let operator = Buyer { at: running.operations, token: sign(audience.clone(), role_claim) };
        let answer = operator.get("/v1/admin/sales").await;
        assert_eq!((answer.status, answer.code()), answered, "{audience} {role_claim}: {}", answer.text);
    }
    // Nor is an operator a buyer.
    let operator = Buyer { at: running.buyers.unwrap(), ..Buyer::operator(&running, Role::Admin) };
    assert_eq!(operator.post(&path, &[], "").await.code(), "unauthenticated");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_would_live_too_long_is_refused() {
    let (_world, running, path) = with_open_sale(&["auth.longest_life_s=3600"]).await;
    let signer = Signer::new(running.auth.clone());
    for (lasts, status) in [(3_600, 202), (3_601, 401), (31_536_000, 401)] {
        let buyer =
            Buyer { at: running.buyers.unwrap(), token: signer.mint(&id(&format!("u{lasts}")), None, lasts) };
        let answer = buyer.post(&path, &[], "").await;
        assert_eq!(answer.status, status, "{lasts}: {}", answer.text);
    }
    running.stop().await;
}

/// A worker's memory would otherwise hold what makes tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_knows_no_secret() {
    let world = World::new(Database::Sqlite).await;
    let signer = Signer::new(world.config().auth());
    let worker = world.running_as(doorbuster::process::Role::Worker).await;
    assert_eq!(worker.auth.secret, "");
    let admin = Buyer::with(worker.operations, &signer, "op", Some(Role::Admin));
    assert_eq!(admin.get("/v1/admin/sales").await.code(), "unauthenticated");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_that_can_make_tokens_says_so() {
    const SAYS: &str = "auth.secret makes tokens";
    let mut world = World::new(Database::Sqlite).await;
    assert!(Doorbuster::start(&world, "front").await.has_logged(SAYS));
    let login = LoginKey::new("login");
    world.set("auth.secret=").set(&format!("auth.public_key={}", login.x()));
    assert!(!Doorbuster::start(&world, "front").await.has_logged(SAYS));
}

/// What a flood of refusals is judged by afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_counted_by_its_reason() {
    let (_world, running, path) =
        with_open_sale(&["front.address_rate=40/60s", "front.trusted_proxies="]).await;
    let signer = Signer::new(running.auth.clone());
    let at = running.buyers.unwrap();
    let expired = json!({"sub": "ada", "iss": "doorbuster", "aud": "doorbuster", "exp": 1_000, "nbf": 0});
    let key = EncodingKey::from_secret(running.auth.secret.as_bytes());
    let expired = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &expired, &key).unwrap();
    let other = Signer::new(AuthSettings::with_secret("another secret, also long enough for HS256"));
    let viewer = Buyer::operator(&running, Role::Viewer);
    let metric = async |line: &str| {
        let text = request(running.operations, "GET", "/metrics", &[], b"").await.text;
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse::<u64>().ok());
        found.unwrap_or(0)
    };
    let reasons = [
        ("unauthenticated", "expired"),
        ("unauthenticated", "signature"),
        ("unauthenticated", "no_token"),
        ("forbidden", "role"),
        ("rate_limited", "address"),
    ];
    let line =
        |(code, reason)| format!("doorbuster_front_problems_total{{code=\"{code}\",reason=\"{reason}\"}}");
    let mut before = Vec::new();
    for reason in reasons {
        before.push(metric(&line(reason)).await);
    }
    Buyer { at, token: expired }.post(&path, &[], "").await;
    Buyer { at, token: other.mint(&id("ada"), None, 60) }.post(&path, &[], "").await;
    request(at, "POST", &path, &[], b"").await;
    viewer.post("/v1/admin/sales", &[], "{}").await;
    let ada = Buyer { at, token: signer.mint(&id("ada"), None, 60) };
    for _ in 0..40 {
        ada.post(&path, &[], "").await;
    }
    for (reason, before) in reasons.into_iter().zip(before) {
        // Other tests in this process are refused as well.
        assert!(metric(&line(reason)).await > before, "{reason:?}");
    }
    running.stop().await;
}
