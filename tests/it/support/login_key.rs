//! The keys of a login, for each algorithm with which it may sign.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair,
};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use doorbuster::domain::Millis;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

/// One key of a login.
pub struct LoginKey {
    /// Its name in the set.
    pub kid: &'static str,
    /// Its private half.
    pub key: EncodingKey,
    algorithm: Algorithm,
    jwk: Value,
}

impl LoginKey {
    /// An Ed25519 key.
    pub fn new(kid: &'static str) -> Self {
        let key = Ed25519KeyPair::generate().unwrap();
        let x = encode(key.public_key().as_ref());
        Self {
            kid,
            key: EncodingKey::from_ed_der(key.to_pkcs8().unwrap().as_ref()),
            algorithm: Algorithm::EdDSA,
            jwk: json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": kid, "x": x}),
        }
    }

    /// A P-256 key.
    pub fn es256(kid: &'static str) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        // An uncompressed point: 4, x, y.
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        Self {
            kid,
            key: EncodingKey::from_ec_der(key.to_pkcs8v1().unwrap().as_ref()),
            algorithm: Algorithm::ES256,
            jwk: json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": encode(x), "y": encode(y)}),
        }
    }

    /// An RSA key of 2,048 bits, as most logins have.
    pub fn rs256(kid: &'static str) -> Self {
        let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let private: Pkcs8V1Der<'_> = key.as_der().unwrap();
        // In DER the modulus comes last, but for the five bytes of the exponent 65,537; and what PKCS #8 puts before a key
        // of this size takes 26 bytes.
        let public = key.public_key().as_ref();
        let modulus = &public[public.len() - 5 - 256..public.len() - 5];
        Self {
            kid,
            key: EncodingKey::from_rsa_der(&private.as_ref()[26..]),
            algorithm: Algorithm::RS256,
            jwk: json!({"kty": "RSA", "kid": kid, "n": encode(modulus), "e": "AQAB"}),
        }
    }

    /// The `x` of an Ed25519 key, as `auth.public_key` takes it.
    pub fn x(&self) -> &str {
        self.jwk["x"].as_str().expect("an Ed25519 key")
    }

    /// A buyer's token, valid for ten minutes.
    pub fn token(&self, user: &str) -> String {
        let now = Millis::now().0 / 1000;
        let claims =
            json!({"sub": user, "iss": "doorbuster", "aud": "doorbuster", "exp": now + 600, "nbf": now - 5});
        let header = Header { kid: Some(self.kid.into()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, &claims, &self.key).unwrap()
    }

    /// The set that a login publishes.
    pub fn set_of(keys: &[&Self]) -> String {
        json!({"keys": keys.iter().map(|key| &key.jwk).collect::<Vec<_>>()}).to_string()
    }
}

fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
