//! The rules for values beyond their types and ranges: lengths, schemes, names, readable URLs.

use std::net::SocketAddr;

use tracing_subscriber::EnvFilter;

use super::ranges;
use super::redact::redact;
use super::sections::Config;
use super::transport;
use crate::front::{JwkSetSource, Providers, TrustedProxies, check_public_key};
use crate::trace;

const SHORT_SECRET: &str = "auth.secret has fewer than 32 bytes; set DOORBUSTER__AUTH__SECRET, or auth.secret_file, \
     for example to the output of `openssl rand -hex 32`";

const NO_KEY: &str = "no key verifies tokens: set auth.jwks or auth.public_key to the public keys of your login, or, for a \
     trial, DOORBUSTER__AUTH__SECRET to the output of `openssl rand -hex 32`";

/// Reports every mistake. With `signs`, the secret is required even if there is a public key.
pub(super) fn check(config: &Config, needs_secret: bool, signs: bool, mistakes: &mut Vec<String>) {
    listeners(config, mistakes);
    secrets(config, needs_secret, signs, mistakes);
    urls(config, mistakes);
    transport::check(config, mistakes);
    traces(config, mistakes);
    prefixes(config, mistakes);
    log(config, mistakes);
    ranges::check(config, mistakes);
}

fn listeners(config: &Config, mistakes: &mut Vec<String>) {
    let monitoring = Some(&config.operations.monitoring_listen).filter(|listen| !listen.is_empty());
    let listeners =
        [("front.listen", &config.front.listen), ("operations.listen", &config.operations.listen)];
    let optional = monitoring.map(|listen| ("operations.monitoring_listen", listen));
    for (name, listen) in listeners.into_iter().chain(optional) {
        if listen.parse::<SocketAddr>().is_err() {
            mistakes.push(format!(
                "{name} is {listen:?}; it must be an address and a port, such as 127.0.0.1:8080"
            ));
        }
    }
    if let Err(wrong) = TrustedProxies::parse(&config.front.trusted_proxies) {
        mistakes.push(format!("front.trusted_proxies: {wrong}"));
    }
    if let Err(wrong) = config.buyer_rate() {
        mistakes.push(format!("front.buyer_rate is {:?}; {wrong}", config.front.buyer_rate));
    }
    if let Err(wrong) = config.address_rate() {
        mistakes.push(format!("front.address_rate is {:?}; {wrong}", config.front.address_rate));
    }
    if let Err(wrong) = config.suspected_rate() {
        mistakes.push(format!("front.suspected_rate is {:?}; {wrong}", config.front.suspected_rate));
    }
}

fn traces(config: &Config, mistakes: &mut Vec<String>) {
    let url = &config.traces.url;
    if url.is_empty() {
        return;
    }
    if !trace::IS_BUILT_IN {
        mistakes.push(
            "traces.url is set, and this build sends no traces: build it with the feature `traces`".into(),
        );
    }
    if config.collector_url().is_none() {
        mistakes.push(format!(
            "traces.url is {:?}; it must be a URL such as http://127.0.0.1:4318/v1/traces, without a name or password",
            redact(url)
        ));
    }
    if let Err(wrong) = trace::read_headers(&config.traces.headers) {
        mistakes.push(format!("traces.headers: {wrong}"));
    }
}

fn secrets(config: &Config, needs_secret: bool, signs: bool, mistakes: &mut Vec<String>) {
    if let Err(wrong) = Providers::parse(&config.payments.secrets) {
        mistakes.push(format!("payments.secrets: {wrong}"));
    }
    if let Err(wrong) = check_public_key(&config.auth.public_key) {
        mistakes.push(format!("auth.public_key: {wrong}"));
    }
    if let Err(wrong) = JwkSetSource::parse(&config.auth.jwks) {
        mistakes.push(format!("auth.jwks is {:?}; {wrong}", redact(&config.auth.jwks)));
    }
    if config.auth.audience == config.auth.operators_audience {
        mistakes
            .push("auth.operators_audience must differ from auth.audience: buyers are not operators".into());
    }
    if ["", "sub", "iss", "aud", "exp", "nbf", "iat", "jti"].contains(&config.auth.role_claim.as_str()) {
        let claim = &config.auth.role_claim;
        mistakes.push(format!("auth.role_claim is {claim:?}; it must be the name of a claim of its own"));
    }
    let length = config.auth.secret.len();
    let has_public_key = !config.auth.public_key.is_empty() || !config.auth.jwks.is_empty();
    let can_do_without = !needs_secret || (!signs && has_public_key);
    if length < 32 && (length > 0 || !can_do_without) {
        let has_no_key = length == 0 && !signs;
        mistakes.push(if has_no_key { NO_KEY.into() } else { SHORT_SECRET.into() });
    }
}

fn urls(config: &Config, mistakes: &mut Vec<String>) {
    let redis = |url: &str| crate::link::check_url(url).err().map(|error| error.to_string());
    let queue = |url: &str| crate::queue::check_url(url).err().map(|error| error.to_string());
    let database = |url: &str| crate::store::check_url(url).err().map(|error| error.to_string());
    let databases = ["sqlite:", "postgres://", "postgresql://", "mysql://"];
    let mut check = |name: &str, url: &str, schemes: &[&str], wrong: &dyn Fn(&str) -> Option<String>| {
        if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
            let shown = redact(url);
            mistakes.push(format!("{name} is {shown:?}; it must begin with {}", schemes.join(" or ")));
        } else if let Some(wrong) = wrong(url) {
            // Not of the others: a driver may show such a URL with its password.
            mistakes.push(format!("{name} cannot be read: {wrong}"));
        }
    };
    check("redis.url", &config.redis.url, &["redis://", "rediss://"], &redis);
    check("queue.url", &config.queue.url, &["amqp://", "amqps://"], &queue);
    check("database.url", &config.database.url, &databases, &database);
}

fn prefixes(config: &Config, mistakes: &mut Vec<String>) {
    for (name, prefix) in [("redis.prefix", &config.redis.prefix), ("queue.prefix", &config.queue.prefix)] {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c);
        if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
            mistakes.push(format!("{name} is {prefix:?}; it must be 1 to 64 of a-z, 0-9, '-' and '.'"));
        }
    }
}

fn log(config: &Config, mistakes: &mut Vec<String>) {
    if !["auto", "text", "json"].contains(&config.log.format.as_str()) {
        mistakes.push(format!("log.format is {:?}; it must be auto, text or json", config.log.format));
    }
    // A filter would accept any word as the name of a module, and then log nothing from the others.
    let level = config.log.level.as_str();
    let is_level = ["error", "warn", "info", "debug", "trace", "off"].contains(&level);
    let is_filter = level.contains(['=', ',']) && level.parse::<EnvFilter>().is_ok();
    if !is_level && !is_filter {
        mistakes
            .push(format!("log.level is {level:?}; it must be error, warn, info, debug, trace, or a filter"));
    }
}
