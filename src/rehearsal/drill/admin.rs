//! A client of the admin API with an operator's token.

use std::net::SocketAddr;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::error::DrillError;
use super::http::{Connection, HttpError};
use super::target::Target;

pub(super) struct Admin {
    address: SocketAddr,
    bearer: String,
}

impl Admin {
    pub(super) fn of(target: &Target) -> Result<Self, DrillError> {
        Ok(Self { address: target.operations, bearer: format!("Bearer {}", target.admin_token()?) })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, DrillError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&self, path: &str, body: Option<Value>) -> Result<Value, DrillError> {
        self.call(Method::POST, path, body.map(|body| body.to_string().into()).unwrap_or_default()).await
    }

    /// Does one act with an idempotency key. A refusal is an answer here, not an error.
    pub(super) async fn act(
        &self,
        path: &str,
        key: &str,
        body: &Value,
    ) -> Result<(StatusCode, Value), HttpError> {
        let headers = [("authorization", self.bearer.as_str()), ("idempotency-key", key)];
        let mut connection = Connection::new(self.address);
        let (status, body) = connection.post(path, &headers, body.to_string().into()).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Value, DrillError> {
        let failed =
            |why: String| DrillError::Call { call: format!("{method} http://{}{path}", self.address), why };
        let headers = [("authorization", self.bearer.as_str())];
        let mut connection = Connection::new(self.address);
        let (status, body) = connection
            .send(method.clone(), path, &headers, body)
            .await
            .map_err(|error| failed(error.to_string()))?;
        if !status.is_success() {
            return Err(failed(format!("{status}: {}", String::from_utf8_lossy(&body))));
        }
        serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
    }
}
