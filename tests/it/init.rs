//! The files that `doorbuster init` writes, each tried with the program that reads it.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use doorbuster::process::Role;

use crate::support::{Buyer, Database, Events, World, run, sale, try_request, until};

const LONG: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn systemd_understands_the_services() {
    let folder = tempfile::tempdir().unwrap();
    let (into, binary) = (folder.path().to_str().unwrap(), env!("CARGO_BIN_EXE_doorbuster"));
    let written = ["init", "systemd", "--into", into, "--binary", binary];
    let (code, out, err) = run(None, &written).await;
    assert_eq!(code, 0, "{out}{err}");
    for unit in ["doorbuster-front.service", "doorbuster-worker@.service"] {
        let path = folder.path().join(unit);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains('@') || !text.contains("@BINARY@") && !text.contains("@HARDENING@"), "{text}");
        let check = Command::new("systemd-analyze").arg("verify").arg(&path).output();
        let check = check.expect("scripts/install-servers installs it");
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(check.status.success() && said.is_empty(), "{unit}: {said}");
        // What systemd does not know it leaves out with a warning, so a mistake in the file shows.
        std::fs::write(&path, text.replace("NoNewPrivileges=", "NoNewPrivilege=")).unwrap();
        let check = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
        assert!(String::from_utf8_lossy(&check.stderr).contains("NoNewPrivilege"), "{unit} was not read");
    }
    let (code, _, err) = run(None, &written).await;
    assert!(code == 2 && err.contains("--force replaces it"), "{code} {err}");
}

struct Haproxy(Child);

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two fronts behind a real HAProxy with the file, but for its certificate. One front stops: buyers notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn haproxy_spreads_buyers_over_the_fronts_that_are_left() {
    let mut world = World::new(Database::Sqlite).await;
    let (one, worker) = (world.running_as(Role::Front).await, world.running_as(Role::Worker).await);
    let sale = sale(&world.name, 100, 1);
    world.open_sale(&one.parts, &sale).await;
    let health = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    world.set(&format!("operations.monitoring_listen={health}"));
    let two = world.running_as(Role::Front).await;

    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().to_str().unwrap();
    let (first, second) = (one.buyers.unwrap().to_string(), two.buyers.unwrap().to_string());
    let port = health.port().to_string();
    let args =
        ["init", "haproxy", "--into", into, "--front", &first, "--front", &second, "--health-port", &port];
    let (code, out, err) = run(None, &args).await;
    assert_eq!(code, 0, "{out}{err}");
    let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = folder.path().join("haproxy.cfg");
    let text = std::fs::read_to_string(&path).unwrap();
    let secure = "bind :443 ssl crt /etc/haproxy/doorbuster.pem alpn h2,http/1.1";
    assert!(text.contains(secure), "{text}");
    // Both fronts are on this host, so the check of the first one needs its own port.
    let of_first = format!("server front-1 {first}");
    let checked = format!("{of_first} port {}", one.operations.port());
    let text = text.replace(secure, &format!("bind {at}")).replace(&of_first, &checked);
    // The user who runs the tests may not be allowed so many open files.
    let text = text.replace("maxconn 60000", "maxconn 1000");
    std::fs::write(&path, text.replace("default-server check", "default-server check inter 100ms")).unwrap();
    let check = Command::new("haproxy").args(["-c", "-f"]).arg(&path).output();
    let check = check.expect("scripts/install-servers installs it");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "haproxy", "-db", "-f"])
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _haproxy = Haproxy(child.unwrap());
    let path = format!("/v1/sales/{}", sale.id);
    until("HAProxy serves", LONG, async || {
        let read = try_request(at, "GET", &path, &[], b"").await?;
        (read.status == 200).then_some(())
    })
    .await;

    let buyer = |user: &str| Buyer { at, ..Buyer::of(&one, user) };
    let ada = buyer("ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    let mut events = Events::of_order(&ada, &sale, order.order_id(), None).await;
    assert_eq!(events.next().await.id, "1-accepted");
    assert_eq!(events.next().await.id, "2-confirmed", "HAProxy passes each event on");
    drop(events);
    two.stop().await;
    for nth in 0..20 {
        let order = buyer(&format!("buyer-{nth}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(order.status, 202, "{nth}: {}", order.text);
    }
    worker.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_none_is_refused() {
    for wrong in ["", "host", "host:", ":80", "host:99999", "a b:80", "host:80\nserver evil 1.2.3.4:80"] {
        let (code, _, err) = run(None, &["init", "haproxy", "--front", wrong]).await;
        assert!(code == 2 && err.contains("HOST:PORT"), "{wrong:?}: {code} {err}");
    }
}

fn written(folder: &tempfile::TempDir, file: &str) -> String {
    std::fs::read_to_string(folder.path().join(file)).unwrap()
}

/// `make manifests` has the files checked against the schemas of Kubernetes.
#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_gets_the_image_and_a_configuration_that_is_read() {
    for (image, name, version) in [
        (
            "registry.example.com:5000/doorbuster:0.1.0",
            "registry.example.com:5000/doorbuster",
            "newTag: \"0.1.0\"",
        ),
        ("doorbuster@sha256:0123abcd", "doorbuster", "digest: \"sha256:0123abcd\""),
        ("registry.example.com:5000/doorbuster", "registry.example.com:5000/doorbuster", ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().to_str().unwrap();
        let (code, out, err) = run(None, &["init", "kubernetes", "--into", into, "--image", image]).await;
        assert_eq!(code, 0, "{out}{err}");
        let kustomization = written(&folder, "kustomization.yaml");
        assert!(kustomization.contains(&format!("newName: \"{name}\"\n")), "{kustomization}");
        assert!(kustomization.contains(version) && !kustomization.contains("@IMAGE@"), "{kustomization}");
        assert_eq!(kustomization.matches("newTag").count(), usize::from(version.contains("newTag")));
        // Each file that it names is there.
        let named = kustomization
            .lines()
            .filter_map(|line| line.trim_start_matches("  # ").trim().strip_prefix("- "));
        for file in named.filter(|file| file.ends_with(".yaml")) {
            assert!(!written(&folder, file).is_empty(), "{file}");
        }
        let config = folder.path().join("config.toml");
        let (code, out, err) = run(None, &["config", "show", "--config", config.to_str().unwrap()]).await;
        assert!(code == 0 && out.contains("0.0.0.0:9100"), "{code} {out}{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_needs_no_checkout() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().to_str().unwrap();
    let image = "registry.example.com/doorbuster:0.1.0";
    let (code, out, err) = run(None, &["init", "compose", "--into", into, "--image", image]).await;
    assert_eq!(code, 0, "{out}{err}");
    let (compose, secrets) = (written(&folder, "compose.yaml"), folder.path().join("make-secrets"));
    assert!(compose.contains(&format!("  image: {image}\n")), "{compose}");
    assert!(!compose.contains("build") && !compose.contains("docker/"), "{compose}");
    for least in ["read_only: true", "cap_drop: [ALL]", "no-new-privileges:true"] {
        assert!(compose.contains(least), "{least}: {compose}");
    }
    let settings = compose.lines().filter(|line| !line.trim_start().starts_with('#'));
    let passwords = settings.filter(|line| line.to_lowercase().contains("password"));
    assert!(passwords.clone().count() > 0);
    for line in passwords {
        let is_of_a_file =
            line.contains("_FILE: /run/secrets/") || line.contains("secrets: [") || line.contains("file: ");
        assert!(is_of_a_file, "{line}");
    }
    let made = Command::new("sh").arg(&secrets).status().unwrap();
    assert!(made.success());
    // Each secret that the file names has been made, and so has every other file.
    let files: Vec<&str> =
        compose.split("file: ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert!(files.len() >= 7, "{files:?}");
    for file in files.into_iter().chain(["redis.conf"]) {
        assert!(!written(&folder, file).is_empty(), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_none_is_refused() {
    for wrong in ["", "a b", "-x", "doorbuster\nnewName: evil", "door\"buster"] {
        for kind in ["kubernetes", "compose"] {
            let image = format!("--image={wrong}");
            let (code, _, err) = run(None, &["init", kind, &image]).await;
            assert!(code == 2 && err.contains("the name of an image"), "{kind} {wrong:?}: {code} {err}");
        }
    }
}
