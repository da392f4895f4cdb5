//! Leases in many scopes at once, as a worker takes them for a batch of orders from several sales.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbuster::lease::{LeaseError, LeaseOptions, MAX_NAMES_PER_CALL, Tokens, release_all};

use crate::seams::lease::leases;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_over_many_scopes_takes_the_free_names_and_releases_them_all() {
    let (_world, leases) = leases().await;
    let busy = leases.take("sale-7", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    let many: Vec<String> = (0..=MAX_NAMES_PER_CALL).map(|nth| format!("buyer-{nth}")).collect();
    let scopes: Vec<String> = (0..100).map(|nth| format!("sale-{nth}")).collect();
    let requested = scopes.iter().flat_map(|scope| ["ada", "bob", "ada"].map(|name| (scope.as_str(), name)));
    let requested = requested.chain(many.iter().map(|name| ("crowd", name.as_str())));
    let (guards, tokens) = leases.take_in_scopes(requested.clone(), LeaseOptions::default()).await.unwrap();
    let wanted: BTreeSet<_> = requested.clone().filter(|pair| *pair != ("sale-7", "ada")).collect();
    assert_eq!(tokens.keys().copied().collect::<BTreeSet<_>>(), wanted);
    // One guard per scope, and two for the scope with more names than fit into one call.
    assert_eq!(guards.len(), 102);
    let granted: Tokens = guards
        .iter()
        .flat_map(|guard| guard.names().iter().map(|name| ((guard.scope(), name.as_str()), guard.token())))
        .collect();
    assert_eq!(tokens, granted);
    assert_eq!(leases.list("sale-7").await.unwrap().len(), 2);

    let (none, tokens) = leases.take_in_scopes(requested.clone(), LeaseOptions::default()).await.unwrap();
    assert!(none.is_empty() && tokens.is_empty());
    release_all(guards).await;
    assert_eq!(leases.list("crowd").await.unwrap().len(), 0);
    assert_eq!(leases.list("sale-7").await.unwrap().len(), 1, "another holder's lease stays");
    busy.release().await.unwrap();
    let (_guards, tokens) = leases.take_in_scopes(requested, LeaseOptions::default()).await.unwrap();
    assert!(tokens.contains_key(&("sale-7", "ada")));
}

#[tokio::test(flavor = "multi_thread")]
async fn if_one_scope_fails_no_lease_of_the_others_is_kept() {
    let (_world, leases) = leases().await;
    let names = [("sale-1", "ada"), ("sale-2", "a name"), ("sale-3", "ada")];
    let answer = leases.take_in_scopes(names, LeaseOptions::default()).await;
    assert!(matches!(answer, Err(LeaseError::Invalid(_))), "{:?}", answer.err());
    assert!(leases.wait_until_idle(Duration::from_secs(40)).await);
    for scope in ["sale-1", "sale-3"] {
        assert_eq!(leases.list(scope).await.unwrap().len(), 0, "{scope}");
    }
}
