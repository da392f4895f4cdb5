//! URLs and configurations without their secrets, for logs, errors and `doorbuster config show`.

use super::sections::Config;

/// Parameters of a URL that hold a password or a passphrase, in lower case.
const SECRET_PARAMETERS: [&str; 4] = ["password", "pass", "pwd", "passphrase"];

/// A URL without its passwords, in the user or in the parameters.
pub fn redact(url: &str) -> String {
    // Where a password that nobody has escaped ends cannot be said.
    if url.split_once('?').is_some_and(|(_, parameters)| parameters.contains('@')) {
        return url.split_once("://").map_or("***".to_owned(), |(scheme, _)| format!("{scheme}://***"));
    }
    let (address, parameters) = match url.split_once('?') {
        Some((address, parameters)) => (address, Some(parameters)),
        None => (url, None),
    };
    let mut shown = without_password(address);
    for (nth, parameter) in parameters.into_iter().flat_map(|all| all.split('&')).enumerate() {
        shown.push(if nth == 0 { '?' } else { '&' });
        match parameter.split_once('=') {
            Some((name, _)) if SECRET_PARAMETERS.contains(&name.to_lowercase().as_str()) => {
                shown.push_str(name);
                shown.push_str("=***");
            }
            _ => shown.push_str(parameter),
        }
    }
    shown
}

/// The part before the parameters. A password may contain a slash that nobody has escaped.
fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        // The path of a file, or a URL whose beginning was mistyped: whatever its user is, it is not shown.
        return match address.rsplit_once('@') {
            Some((_, host)) if !address.starts_with("sqlite:") => format!("***@{host}"),
            _ => address.to_owned(),
        };
    };
    let Some((user, host)) = rest.rsplit_once('@') else { return address.to_owned() };
    let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
    format!("{scheme}://{user}@{host}")
}

impl Config {
    /// As TOML, with `***` for every secret and password.
    pub fn redacted(&self) -> String {
        let mut shown = self.clone();
        for secret in [&mut shown.auth.secret, &mut shown.payments.secrets, &mut shown.traces.headers] {
            if !secret.is_empty() {
                *secret = "***".into();
            }
        }
        for url in [&mut shown.redis.url, &mut shown.queue.url, &mut shown.database.url, &mut shown.auth.jwks]
        {
            *url = redact(url);
        }
        toml::to_string(&shown).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn no_password_of_a_url_is_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
            (
                "amqps://shop:hunter2@rabbit:5671/%2f?heartbeat=5",
                "amqps://shop:***@rabbit:5671/%2f?heartbeat=5",
            ),
            ("postgres://shop:hun/ter@2@db/shop", "postgres://shop:***@db/shop"),
            (
                "postgres://db/shop?user=shop&password=hunter2&sslmode=require",
                "postgres://db/shop?user=shop&password=***&sslmode=require",
            ),
            ("mysql://db/shop?Password=hunter2", "mysql://db/shop?Password=***"),
            ("postgres://shop:hunt?er2@db/shop", "postgres://***"),
            ("postgres://db/shop?user=shop&password=hun@ter2", "postgres://***"),
            ("shop:hunt?er2@db/shop", "***"),
            ("sqlite:doorbuster.db", "sqlite:doorbuster.db"),
            ("sqlite:shop@home.db", "sqlite:shop@home.db"),
            ("shop:hunter2@db:5432/shop", "***@db:5432/shop"),
            ("amqp:shop:hunter2@rabbit?heartbeat=5", "***@rabbit?heartbeat=5"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }
}
