//! Sales for operators: create, list, show, check and audit them.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;

use super::errors::control_problem;
use super::views::{AdminSaleJson, AuditJson, CheckList, SaleList};
use crate::domain::{ActRequest, Item, Millis, Sale, Terms, Window};
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::INVALID_SALE;
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::request::{PathOf, in_path, sale_id};
use crate::front::state::Operations;

type App = State<Arc<Operations>>;

/// A new sale.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct SaleBody {
    /// 1 to 40 of `a-z`, `0-9` and `-`, beginning with a letter or digit.
    sale_id: String,
    /// The name for buyers; the id if left out.
    name: Option<String>,
    /// When it begins to sell; now if left out.
    opens_at: Option<Millis>,
    /// When it stops selling; when it is closed if left out.
    closes_at: Option<Millis>,
    /// The most units per buyer, across all items: 1 to 1000.
    #[serde(default = "one")]
    limit_per_user: u32,
    /// The other terms.
    #[serde(default)]
    rules: Terms,
    /// 1 to 100 items, each sku once.
    items: Vec<Item>,
}

fn one() -> u32 {
    1
}

impl SaleBody {
    /// The name defaults to the id, and the opening time to now.
    fn sale(self) -> Answered<Sale> {
        let id = self.sale_id.parse();
        Ok(Sale {
            id: id.map_err(|error| Problem::new(INVALID_SALE, format!("sale_id: {error}")))?,
            name: self.name.unwrap_or(self.sale_id),
            window: Window { opens_at: self.opens_at.unwrap_or_else(Millis::now), closes_at: self.closes_at },
            limit_per_user: self.limit_per_user,
            terms: self.rules,
            items: self.items,
        })
    }
}

pub(super) async fn create(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Admin).await?;
        let bytes = body::read(body, body::LARGE, app.settings.body_within).await?;
        let sale = body::json::<SaleBody>(&bytes)?.sale()?;
        app.control.create(&sale, &ActRequest::by_operator(&operator)).await.map_err(control_problem)?;
        Ok((StatusCode::CREATED, Json(AdminSaleJson::draft(&sale))).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn list(State(app): App, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let listed = app.control.list().await.map_err(control_problem)?;
        Ok(Json(SaleList { sales: listed.iter().map(AdminSaleJson::of).collect() }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn show(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let status = app.control.show(&sale_id(&in_path(path)?)?).await.map_err(control_problem)?;
        Ok(Json(AdminSaleJson::of(&status)).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

/// Whether the sale is ready for its buyers. It does not check the broker; `/readyz` does.
pub(super) async fn check(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let checks = app.control.check(&sale_id(&in_path(path)?)?).await.map_err(control_problem)?;
        let ready = checks.iter().all(|check| check.good);
        Ok(Json(CheckList { ready, checks }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn audit(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let books = app.control.audit(&sale_id(&in_path(path)?)?).await.map_err(control_problem)?;
        Ok(Json(AuditJson::of(&books)).into_response())
    };
    respond_to_operator(answer.await, &headers)
}
