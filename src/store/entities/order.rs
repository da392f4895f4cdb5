use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "orders")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub sale_id: String,
    pub user_id: String,
    pub sku: String,
    pub quantity: i32,
    pub status: String,
    pub failure: Option<String>,
    pub epoch: Option<i64>,
    pub seq: Option<i64>,
    pub limit_per_user: i32,
    pub fence: i64,
    pub attempt_id: Option<Uuid>,
    pub key_digest: String,
    pub live_key: Option<String>,
    pub fingerprint: String,
    pub version: i32,
    pub accepted_at_ms: i64,
    pub recorded_at_ms: i64,
    pub updated_at_ms: i64,
    pub pay_by_ms: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
