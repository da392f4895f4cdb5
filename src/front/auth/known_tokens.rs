//! A cache of verified tokens, so that a buyer who clicks ten times is verified once. Its size is bounded, and each
//! token stays no longer than its `exp`, and no longer than the keys stay the same. A single token cannot be revoked,
//! with or without the cache: it is valid until it expires or its key is withdrawn.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use siphasher::sip128::SipHasher13;

/// Tokens in one generation. There are two: when the newer is full, the older is dropped.
const GENERATION: usize = 50_000;

/// A verified token.
pub(super) struct Known<T> {
    pub(super) claims: T,
    /// When it expires, in seconds since 1970, leeway included.
    pub(super) until: i64,
    /// The version of the keys that it was verified with.
    pub(super) keys: u64,
}

/// By a keyed hash of the token, 128 bits that nobody outside this process can predict, so nobody can make a token that
/// collides with a cached one.
pub(super) struct KnownTokens<T> {
    /// With its key. Each click is hashed.
    hasher: SipHasher13,
    generations: RwLock<Generations<T>>,
}

struct Generations<T> {
    younger: HashMap<u128, Arc<Known<T>>>,
    elder: HashMap<u128, Arc<Known<T>>>,
}

impl<T> KnownTokens<T> {
    pub(super) fn new() -> Self {
        let generations = Generations { younger: HashMap::new(), elder: HashMap::new() };
        Self { hasher: SipHasher13::new_with_key(&rand::random()), generations: RwLock::new(generations) }
    }

    /// The token, unless it has expired at `now`, in seconds since 1970, or the keys have changed.
    pub(super) fn get(&self, token: &str, now: i64, keys: u64) -> Option<Arc<Known<T>>> {
        let name = self.name(token);
        let generations = self.generations.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = generations.younger.get(&name).or_else(|| generations.elder.get(&name))?;
        (now < known.until && keys == known.keys).then(|| known.clone())
    }

    pub(super) fn put(&self, token: &str, known: Known<T>) -> Arc<Known<T>> {
        let name = self.name(token);
        let known = Arc::new(known);
        let mut generations = self.generations.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if generations.younger.len() >= GENERATION {
            generations.elder = std::mem::take(&mut generations.younger);
        }
        generations.younger.insert(name, known.clone());
        known
    }

    fn name(&self, token: &str) -> u128 {
        self.hasher.hash(token.as_bytes()).as_u128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_until_it_expires_and_no_longer() {
        let known = KnownTokens::new();
        known.put("a", Known { claims: "ada", until: 100, keys: 1 });
        assert_eq!(known.get("a", 99, 1).map(|known| known.claims), Some("ada"));
        assert!(known.get("a", 100, 1).is_none());
        assert!(known.get("a", 99, 2).is_none(), "its key may be withdrawn");
        assert!(known.get("b", 99, 1).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_the_youngest() {
        let known = KnownTokens::new();
        let all = 3 * GENERATION;
        for nth in 0..all {
            known.put(&nth.to_string(), Known { claims: nth, until: 100, keys: 0 });
        }
        let kept = (0..all).filter(|nth| known.get(&nth.to_string(), 0, 0).is_some()).count();
        assert!((GENERATION..=2 * GENERATION).contains(&kept), "{kept}");
        assert!(known.get(&(all - 1).to_string(), 0, 0).is_some());
        assert!(known.get("0", 0, 0).is_none());
    }
}
