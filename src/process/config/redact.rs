//! URLs and configurations without their secrets, for logs, errors and `doorbuster config show`.

use super::sections::Config;

/// A URL without its password.
pub fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let Some((user, host)) = authority.rsplit_once('@') else { return url.to_owned() };
    let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
    format!("{scheme}://{user}@{host}{path}")
}

impl Config {
    /// As TOML, with `***` for every secret and password.
    pub fn redacted(&self) -> String {
        let mut shown = self.clone();
        for secret in [&mut shown.auth.secret, &mut shown.payments.secrets] {
            if !secret.is_empty() {
                *secret = "***".into();
            }
        }
        for url in [&mut shown.redis.url, &mut shown.queue.url, &mut shown.database.url] {
            *url = redact(url);
        }
        toml::to_string(&shown).unwrap_or_default()
    }
}
