//! `doorbuster init`: writes files for the tools that a team runs already.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::ended::{Ended, Failed};
use crate::telemetry::grafana;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Prometheus: what to scrape, and the alerts.
    #[command(
        after_help = "Example:\n  doorbuster init prometheus --into /etc/prometheus --target front-1:9100"
    )]
    Prometheus {
        #[command(flatten)]
        files: Files,
        /// The operations listener of a process, HOST:PORT. May be repeated.
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9090")]
        target: Vec<String>,
    },
    /// systemd: a front and workers as services.
    #[command(after_help = "Example:\n  doorbuster init systemd --into /etc/systemd/system")]
    Systemd {
        #[command(flatten)]
        files: Files,
        /// The installed program.
        #[arg(long, value_name = "FILE", default_value = "/usr/local/bin/doorbuster")]
        binary: PathBuf,
    },
    /// HAProxy: spreads buyers over the fronts.
    #[command(
        after_help = "Example:\n  doorbuster init haproxy --into /etc/haproxy --front 10.0.0.1:8080 --front 10.0.0.2:8080"
    )]
    Haproxy {
        #[command(flatten)]
        files: Files,
        /// The buyers' listener of a front, HOST:PORT. May be repeated.
        #[arg(long, value_name = "HOST:PORT", required = true, value_parser = host_and_port)]
        front: Vec<String>,
        /// The port of each front's `operations.monitoring_listen`.
        #[arg(long, value_name = "PORT", default_value_t = 9100)]
        health_port: u16,
    },
    /// Docker Compose: two fronts, two workers and their servers on one host.
    #[command(
        after_help = "Example:\n  doorbuster init compose --into shop --image registry.example.com/doorbuster:0.1.0"
    )]
    Compose {
        #[command(flatten)]
        files: Files,
        /// The image of doorbuster.
        #[arg(long, value_name = "IMAGE", default_value = "doorbuster", value_parser = Image::parse)]
        image: Image,
    },
    /// Kubernetes: fronts, workers and the migration, for `kubectl apply -k`.
    #[command(
        after_help = "Example:\n  doorbuster init kubernetes --into shop --image registry.example.com/doorbuster:0.1.0"
    )]
    Kubernetes {
        #[command(flatten)]
        files: Files,
        /// The image of doorbuster.
        #[arg(long, value_name = "IMAGE", value_parser = Image::parse)]
        image: Image,
    },
    /// Grafana: a dashboard to import.
    #[command(after_help = "Example:\n  doorbuster init grafana --into /var/lib/grafana/dashboards")]
    Grafana {
        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Files {
    /// The folder for the files; it is made if there is none.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    into: PathBuf,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
}

/// The alert rules of this build.
const ALERTS: &str = include_str!("../../config/prometheus/alerts.yml");

const FRONT_SERVICE: &str = include_str!("../../config/systemd/doorbuster-front.service");
const WORKER_SERVICE: &str = include_str!("../../config/systemd/doorbuster-worker@.service");
const HARDENING: &str = include_str!("../../config/systemd/hardening.conf");
const HAPROXY: &str = include_str!("../../config/haproxy/haproxy.cfg");

const COMPOSE: &str = include_str!("../../docker/compose.yaml");
const REDIS: &str = include_str!("../../docker/redis.conf");
const MAKE_SECRETS: &str = include_str!("../../docker/make-secrets");

const KUSTOMIZATION: &str = include_str!("../../config/kubernetes/kustomization.yaml");
const KUBERNETES: [(&str, &str); 6] = [
    ("config.toml", include_str!("../../config/kubernetes/config.toml")),
    ("migrate.yaml", include_str!("../../config/kubernetes/migrate.yaml")),
    ("front.yaml", include_str!("../../config/kubernetes/front.yaml")),
    ("worker.yaml", include_str!("../../config/kubernetes/worker.yaml")),
    ("network.yaml", include_str!("../../config/kubernetes/network.yaml")),
    ("keda.yaml", include_str!("../../config/kubernetes/keda.yaml")),
];

pub(super) fn run(verb: &Verb) -> Result<Ended, Failed> {
    match verb {
        Verb::Prometheus { files, target } => {
            files.write(&[("prometheus.yml", &scrape(target)), ("alerts.yml", ALERTS)])?;
        }
        Verb::Systemd { files, binary } => {
            let [front, worker] = [FRONT_SERVICE, WORKER_SERVICE].map(|unit| service(unit, binary));
            files.write(&[("doorbuster-front.service", &front), ("doorbuster-worker@.service", &worker)])?;
        }
        Verb::Haproxy { files, front, health_port } => {
            files.write(&[("haproxy.cfg", &balancer(front, *health_port))])?;
        }
        Verb::Compose { files, image } => {
            let [compose, secrets] = [COMPOSE, MAKE_SECRETS].map(without_checkout);
            let compose = compose.replace("  image: doorbuster\n", &format!("  image: {}\n", image.text()));
            files.write(&[("compose.yaml", &compose), ("redis.conf", REDIS), ("make-secrets", &secrets)])?;
        }
        Verb::Kubernetes { files, image } => {
            let kustomization = KUSTOMIZATION
                .replace("@IMAGE@", &image.name)
                .replace("@VERSION@\n", &image.version_in_yaml());
            let mut all = vec![("kustomization.yaml", kustomization.as_str())];
            all.extend(KUBERNETES);
            files.write(&all)?;
        }
        Verb::Grafana { files } => {
            files.write(&[("doorbuster-dashboard.json", &format!("{:#}\n", grafana()))])?;
        }
    }
    Ok(Ended::Done)
}

fn scrape(targets: &[String]) -> String {
    let targets: Vec<String> = targets.iter().map(|target| format!("          - {target:?}\n")).collect();
    format!(
        "# Written by `doorbuster init prometheus`. The alerts need a scrape each minute at least; during a sale, each five\n\
         # seconds show more.\n\
         global:\n  scrape_interval: 5s\n  evaluation_interval: 15s\n\
         rule_files: [alerts.yml]\n\
         scrape_configs:\n  - job_name: doorbuster\n    static_configs:\n      - targets:\n{}",
        targets.concat()
    )
}

fn service(unit: &str, binary: &Path) -> String {
    unit.replace("@BINARY@", &binary.display().to_string()).replace("@HARDENING@\n", HARDENING)
}

fn balancer(fronts: &[String], health_port: u16) -> String {
    let servers = fronts.iter().zip(1..);
    let servers: Vec<String> =
        servers.map(|(front, nth)| format!("    server front-{nth} {front}\n")).collect();
    HAPROXY.replace("@HEALTH@", &health_port.to_string()).replace("@SERVERS@\n", &servers.concat())
}

/// The files of `docker` for somebody who has an image and no checkout.
fn without_checkout(text: &str) -> String {
    let build = "  build:\n    context: ..\n    dockerfile: docker/Dockerfile\n";
    let text = text.replace(build, "").replace("--build ", "").replace(" -f docker/compose.yaml", "");
    text.replace("docker/make-secrets  ", "sh make-secrets").replace("docker/secrets", "secrets")
}

/// The reference of an image, with a tag or a digest.
#[derive(Debug, Clone)]
pub(super) struct Image {
    name: String,
    /// With the `:` or `@` before it; empty if there is none.
    version: String,
}

impl Image {
    /// Only what may stand in a file as it is.
    fn parse(text: &str) -> Result<Self, NoImage> {
        let is_plain = text.chars().all(|char| char.is_ascii_alphanumeric() || "-._/:@".contains(char));
        if !is_plain || !text.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            return Err(NoImage);
        }
        let digest = text.find('@');
        // A colon before a slash begins the port of the registry.
        let tag = text.rfind(':').filter(|colon| !text[*colon..].contains('/'));
        let (name, version) = text.split_at(digest.or(tag).unwrap_or(text.len()));
        Ok(Self { name: name.into(), version: version.into() })
    }

    fn text(&self) -> String {
        format!("{}{}", self.name, self.version)
    }

    /// As kustomize has it: a tag, a digest, or neither.
    fn version_in_yaml(&self) -> String {
        match (self.version.strip_prefix(':'), self.version.strip_prefix('@')) {
            (Some(tag), _) => format!("    newTag: \"{tag}\"\n"),
            (_, Some(digest)) => format!("    digest: \"{digest}\"\n"),
            _ => String::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("must be the name of an image, such as registry.example.com/doorbuster:0.1.0")]
struct NoImage;

/// An address as it may stand in a file, where a space or a line break would begin another word.
fn host_and_port(text: &str) -> Result<String, NoAddress> {
    let is_plain =
        |host: &str| host.chars().all(|char| char.is_ascii_alphanumeric() || "-.:[]_".contains(char));
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && is_plain(host) && port.parse::<u16>().is_ok() => {
            Ok(text.into())
        }
        _ => Err(NoAddress),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("must be HOST:PORT, such as 10.0.0.1:8080")]
struct NoAddress;

impl Files {
    /// Writes all of them, or none if one exists.
    fn write(&self, files: &[(&str, &str)]) -> Result<(), Failed> {
        let paths = files.iter().map(|(name, _)| self.into.join(name));
        if let Some(path) = paths.into_iter().find(|path| !self.force && path.exists()) {
            return Err(Failed::Usage(format!("{} exists; --force replaces it", path.display())));
        }
        let failed = |path: &Path, error| Failed::Other(format!("{}: {error}", path.display()));
        std::fs::create_dir_all(&self.into).map_err(|error| failed(&self.into, error))?;
        for (name, text) in files {
            let path = self.into.join(name);
            std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
            say!("{}", path.display());
        }
        Ok(())
    }
}
