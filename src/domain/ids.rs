//! Identifiers. Each has one spelling, so that a Redis key, a column and a URL agree. None can carry a control
//! character or a separator into a place where it would mean something.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Invalid;

/// A checked text: `$valid` is the whole rule, and no value exists that has not passed it.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $pattern:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(description = concat!($what, ": ", $rule), extend("pattern" = $pattern))]
        pub struct $name(String);

        impl $name {
            /// Checks the text; it is kept as it is.
            pub fn parse(text: impl Into<String>) -> Result<Self, Invalid> {
                let text = text.into();
                let valid: fn(&str) -> bool = $valid;
                if valid(&text) {
                    Ok(Self(text))
                } else {
                    Err(Invalid { what: $what, rule: $rule })
                }
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

fn is_slug(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 40
        && text.as_bytes().first().is_some_and(|c| alphanumeric(*c))
        && text.bytes().all(|c| alphanumeric(c) || c == b'-')
}

checked_text!(
    /// The id of a sale. Also the hash tag of every Redis key of the sale.
    SaleId,
    "a sale id",
    "1 to 40 of a-z, 0-9 and '-', beginning with a letter or digit",
    "^[a-z0-9][a-z0-9-]{0,39}$",
    is_slug
);
checked_text!(
    /// The id of an item within its sale.
    Sku,
    "a sku",
    "1 to 40 of a-z, 0-9 and '-', beginning with a letter or digit",
    "^[a-z0-9][a-z0-9-]{0,39}$",
    is_slug
);
checked_text!(
    /// A buyer: the `sub` of the bearer token.
    UserId,
    "a user id",
    "1 to 64 of A-Z, a-z, 0-9 and '._:@-'",
    "^[A-Za-z0-9._:@-]{1,64}$",
    |text| (1..=64).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._:@-".contains(&c))
);
checked_text!(
    /// The name that a buyer gives one click, as sent in the `Idempotency-Key` header, or that an operator gives one
    /// act.
    IdempotencyKey,
    "an Idempotency-Key",
    "1 to 64 visible ASCII characters",
    "^[!-~]{1,64}$",
    |text| (1..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic())
);

/// The id of an order, from before the gate decides until its row is purged. A UUIDv7 (RFC 9562), so later ids sort
/// later and inserts go to the end of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "The id of an order: a UUID, version 7.")]
pub struct OrderId(Uuid);

impl OrderId {
    /// A new id, with the time of the host's clock.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// When the id was generated, by the clock of the host that did. `None` if it is not a UUIDv7.
    pub fn generated_at(self) -> Option<super::Millis> {
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        let millis = i64::try_from(seconds).ok()?.checked_mul(1_000)?;
        Some(super::Millis(millis + i64::from(nanos / 1_000_000)))
    }

    /// The id as a UUID.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for OrderId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl std::str::FromStr for OrderId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Uuid::try_parse(text).map(Self).map_err(|_| Invalid { what: "an order id", rule: "a UUID" })
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A truncated SHA-256, written in every text as unpadded base64url.
macro_rules! digest_text {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $what:literal, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; $bytes]);

        impl $name {
            fn of(text: &[u8]) -> Self {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&digest(&SHA256, text).as_ref()[..$bytes]);
                Self(bytes)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }

        impl std::str::FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                let invalid = Invalid { what: $what, rule: $rule };
                let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid.clone())?;
                bytes.try_into().map(Self).map_err(|_| invalid)
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> String {
                digest.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
            }
        }
    };
}

digest_text!(
    /// The idempotency key as entries, messages and rows carry it: 12 bytes of SHA-256, unique within (sale, user).
    /// With 96 bits, a user would need 2^48 keys for an even chance of a collision.
    KeyDigest,
    12,
    "a key digest",
    "12 bytes as base64url"
);
digest_text!(
    /// A digest of the body with its defaults resolved. It distinguishes a repeat from another order under the same
    /// key.
    Fingerprint,
    8,
    "a fingerprint",
    "8 bytes as base64url"
);

impl IdempotencyKey {
    /// A random key (UUIDv4).
    pub fn generate() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }
}

impl KeyDigest {
    /// `None` means that the buyer sent no key. Its digest is that of the empty text, which no key can have: a header
    /// cannot be empty.
    pub fn of_key(key: Option<&IdempotencyKey>) -> Self {
        Self::of(key.map_or(b"", |key| key.as_str().as_bytes()))
    }

    /// The digest of a key that Doorbuster itself makes up.
    pub fn of_text(text: &str) -> Self {
        Self::of(text.as_bytes())
    }
}

impl Fingerprint {
    /// The fingerprint of an order for `quantity` units of `sku`.
    pub fn of_body(sku: &Sku, quantity: u32) -> Self {
        Self::of(format!("{sku}\n{quantity}").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_cannot_carry_a_separator_or_a_control_character() {
        for good in ["a", "0", "shoe-42", &"a".repeat(40)] {
            assert!(SaleId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a b", "a\n", "a}", "a|b", "é", &"a".repeat(41)] {
            assert!(SaleId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_user_may_be_a_mail_address_but_not_a_sentence() {
        assert!(UserId::parse("ada.l@example.org").is_ok());
        for bad in ["", "a b", "a\u{0}", "a|b", "a,b", &"u".repeat(65)] {
            assert!(UserId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn digests_survive_being_written_as_text() {
        let key = IdempotencyKey::parse("click-1").ok();
        let digest = KeyDigest::of_key(key.as_ref());
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_ne!(digest, KeyDigest::of_key(None));
        assert!("short".parse::<KeyDigest>().is_err());
    }

    #[test]
    fn the_fingerprint_tells_sku_and_quantity_apart() {
        let sku = |text: &str| Sku::parse(text).expect("a valid sku");
        assert_ne!(Fingerprint::of_body(&sku("a1"), 1), Fingerprint::of_body(&sku("a"), 11));
    }
}
