//! The record of acts that belong to no sale's history: written before the act, and completed with its result.

use crate::domain::ActRequest;
use crate::store::{Store, StoreError};

/// Records an act, does it, and records how it ended. If the act cannot be recorded it is not done.
pub(crate) async fn recorded<T, E: From<StoreError> + std::fmt::Display>(
    store: &Store,
    (kind, subject): (&str, &str),
    request: &ActRequest,
    work: impl Future<Output = Result<T, E>>,
    describe: impl Fn(&T) -> String,
) -> Result<T, E> {
    let act = store.begin_operator_act(kind, subject, request).await?;
    let done = work.await;
    let result = match &done {
        Ok(done) => describe(done),
        Err(error) => format!("error: {error}"),
    };
    if let Err(error) = store.end_operator_act(act, &result).await {
        tracing::warn!(kind, subject, result, %error, "the result of an act is not recorded");
    }
    done
}
