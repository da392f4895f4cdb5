//! What may travel unencrypted. Within one host everything may; to another host only what the configuration names, and
//! then on purpose: passwords, orders and the operators' tokens would pass every device on the way.

use std::net::{IpAddr, SocketAddr};

use url::{Host, Url};

use super::sections::Config;

/// Reports every connection that would be in plaintext and is not allowed by name.
pub(super) fn check(config: &Config, mistakes: &mut Vec<String>) {
    let secret = "passwords and orders";
    for (name, url, what, instead) in [
        ("redis.url", &config.redis.url, secret, "use rediss://"),
        ("queue.url", &config.queue.url, secret, "use amqps://"),
        ("traces.url", &config.traces.url, "the ids of orders", "use https://"),
        (
            "database.url",
            &config.database.url,
            secret,
            "add ?sslmode=verify-full for PostgreSQL, ?ssl-mode=VERIFY_IDENTITY for MariaDB and MySQL",
        ),
    ] {
        // What cannot be parsed is reported elsewhere.
        let Some(host) = Url::parse(url).ok().and_then(|url| plaintext_host(&url)) else { continue };
        if !config.process.plaintext_hosts.split(',').any(|allowed| allowed.trim() == host) {
            mistakes.push(format!(
                "{name} would send {what} to {host} in plaintext: {instead}, or name {host} in \
                 process.plaintext_hosts if the network between is your own"
            ));
        }
    }
    let exposed = config.operations.listen.parse::<SocketAddr>().is_ok_and(|at| !at.ip().is_loopback());
    if exposed && !config.operations.exposed {
        mistakes.push(format!(
            "operations.listen is {}, and its admin API and metrics have no TLS: listen on 127.0.0.1, or set \
             operations.exposed = true if only your own network reaches that address",
            config.operations.listen
        ));
    }
}

/// The other host that a URL reaches without TLS, or with TLS that an attacker on the way could turn off.
fn plaintext_host(url: &Url) -> Option<String> {
    let parameter = |wanted: &str| {
        let found = url.query_pairs().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.to_lowercase())
    };
    let encrypts = match url.scheme() {
        "redis" | "amqp" | "http" => false,
        // The others fall back to plaintext if the server, or somebody on the way, asks for it.
        "postgres" | "postgresql" => parameter("sslmode")
            .is_some_and(|mode| ["require", "verify-ca", "verify-full"].contains(&mode.as_str())),
        "mysql" => parameter("ssl-mode")
            .is_some_and(|mode| ["required", "verify_ca", "verify_identity"].contains(&mode.as_str())),
        _ => true,
    };
    if encrypts {
        return None;
    }
    let host =
        parameter("host").or_else(|| url.host_str().map(str::to_owned)).filter(|host| !host.is_empty())?;
    // PostgreSQL takes a folder with a socket for a host.
    if host.starts_with('/') || host.to_lowercase().starts_with("%2f") || host == "localhost" {
        return None;
    }
    let address = match url.host() {
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
        _ => host.parse().ok(),
    };
    (!address.is_some_and(|address| address.is_loopback())).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_leaves_the_host_only_if_it_is_named() {
        let host = |url: &str| plaintext_host(&Url::parse(url).expect("a URL"));
        for url in [
            "redis://127.0.0.1:6379",
            "redis://localhost",
            "redis://[::1]:6379",
            "rediss://cache:6379",
            "amqps://rabbit",
            "sqlite:doorbuster.db",
            "postgres://127.0.0.1/shop",
            "postgres://db/shop?sslmode=verify-full",
            "postgres://%2Frun%2Fpostgresql/shop",
            "postgres:///shop?host=/run/postgresql",
            "http://127.0.0.1:4318/v1/traces",
            "https://collector.example/v1/traces",
            "mysql://db/shop?ssl-mode=REQUIRED",
        ] {
            assert_eq!(host(url), None, "{url}");
        }
        for (url, shown) in [
            ("redis://cache:6379", "cache"),
            ("http://collector:4318/v1/traces", "collector"),
            ("amqp://shop:hunter2@192.0.2.1:5672", "192.0.2.1"),
            ("postgres://db/shop", "db"),
            ("postgres://db/shop?sslmode=prefer", "db"),
            ("postgres://127.0.0.1/shop?host=db", "db"),
            ("mysql://db/shop?ssl-mode=PREFERRED", "db"),
        ] {
            assert_eq!(host(url).as_deref(), Some(shown), "{url}");
        }
    }
}
