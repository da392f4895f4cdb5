//! The files for Prometheus and Grafana, tried with a real Prometheus that scrapes a sale.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use doorbuster::telemetry::queries;

use crate::support::{Buyer, Database, World, request, run, sale, try_request, until};

const LONG: Duration = Duration::from_secs(120);

/// Ends with the test.
struct Prometheus {
    child: Child,
    at: std::net::SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// With the files of `doorbuster init prometheus`, scraping each second.
    async fn scraping(target: std::net::SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().to_str().unwrap();
        let (code, out, err) =
            run(None, &["init", "prometheus", "--into", into, "--target", &target.to_string()]).await;
        assert_eq!(code, 0, "{out}{err}");
        let config = folder.path().join("prometheus.yml");
        let text = std::fs::read_to_string(&config).unwrap();
        assert!(text.contains("scrape_interval: 5s"), "{text}");
        std::fs::write(&config, text.replace("scrape_interval: 5s", "scrape_interval: 1s")).unwrap();
        let check = Command::new("promtool").args(["check", "config"]).arg(&config).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "prometheus", "--log.level=error"])
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={at}"))
            .stdout(Stdio::null())
            .spawn()
            .expect("scripts/install-servers installs it");
        let prometheus = Self { child, at, _folder: folder };
        until("Prometheus is ready", LONG, async || {
            let ready = try_request(at, "GET", "/-/ready", &[], b"").await?;
            (ready.status == 200).then_some(())
        })
        .await;
        prometheus
    }

    /// The values that a query returns now. One that divides nothing by nothing is no value.
    async fn values(&self, query: &str) -> Vec<f64> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = request(self.at, "GET", &format!("/api/v1/query?query={escaped}"), &[], b"").await;
        assert_eq!(answer.json["status"], "success", "{query}: {}", answer.text);
        let found = answer.json["data"]["result"].as_array().cloned().unwrap_or_default();
        let values = found.iter().filter_map(|series| series["value"][1].as_str()?.parse::<f64>().ok());
        values.filter(|value| !value.is_nan()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_of_the_dashboard_has_data_of_a_sale() {
    let mut world = World::new(Database::Postgres).await;
    world.set("audit.every_s=1");
    let running = world.running().await;
    let sale = sale(&world.name, 1_000_000, 1);
    world.open_sale(&running.parts, &sale).await;
    let prometheus = Prometheus::scraping(running.operations).await;
    let buyers = AtomicU32::new(0);
    let buying = async {
        loop {
            let nth = buyers.fetch_add(1, Ordering::Relaxed);
            let buyer = Buyer::of(&running, &format!("user{nth}"));
            let answer = buyer.buy(sale.id.as_str(), "k").await;
            assert_eq!(answer.status, 202, "{}", answer.text);
            // The limit is one.
            assert_eq!(buyer.buy(sale.id.as_str(), "another").await.code(), "already_ordered");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let looking = async {
        for (panel, query) in queries("10s") {
            until(&format!("{panel}: {query}"), LONG, async || {
                (!prometheus.values(&query).await.is_empty()).then_some(())
            })
            .await;
        }
        // The last buyer may still wait for an answer.
        let sold = f64::from(buyers.load(Ordering::Relaxed) - 1);
        until("Prometheus counts every order", LONG, async || {
            let counted = prometheus.values("sum(doorbuster_front_accepted_total)").await;
            (counted.first() >= Some(&sold)).then_some(())
        })
        .await;
    };
    tokio::select! {
        () = looking => {}
        () = buying => unreachable!("it goes on"),
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_is_written_once_and_replaced_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["init", "grafana", "--into", folder.path().to_str().unwrap()];
    let (code, out, err) = run(None, &arguments).await;
    assert_eq!((code, err.as_str()), (0, ""));
    let text = std::fs::read_to_string(out.trim()).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: std::collections::BTreeSet<u64> =
        panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    std::fs::write(out.trim(), "mine").unwrap();
    let (code, _, err) = run(None, &arguments).await;
    assert!(code == 2 && err.contains("--force"), "{code} {err}");
    assert_eq!(std::fs::read_to_string(out.trim()).unwrap(), "mine");
    let (code, ..) = run(None, &[arguments.as_slice(), &["--force"]].concat()).await;
    assert_eq!((code, std::fs::read_to_string(out.trim()).unwrap() == text), (0, true));
    let new = folder.path().join("a/new/folder");
    let (code, out, err) = run(None, &["init", "grafana", "--into", new.to_str().unwrap()]).await;
    assert!(code == 0 && std::path::Path::new(out.trim()).starts_with(&new), "{code} {out}{err}");
    let in_a_file = format!("{}/folder", out.trim());
    let (code, _, err) = run(None, &["init", "grafana", "--into", &in_a_file]).await;
    assert!(code == 1 && err.contains(&in_a_file), "{code} {err}");
}
