use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "sales")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub name: String,
    pub state: String,
    pub opens_at_ms: i64,
    pub closes_at_ms: Option<i64>,
    pub limit_per_user: i32,
    pub epoch: i64,
    pub seq: i64,
    pub created_at_ms: i64,
    pub updated_at_ms: i64,
    pub pay_within_s: Option<i32>,
    pub rebuy: bool,
    pub late_payment: String,
    pub user_rate: Option<String>,
    pub sale_rate: Option<String>,
    pub message: Option<String>,
    pub retry_after_s: Option<i32>,
    pub rules_version: i64,
    pub told_epoch: i64,
    pub told_seq: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
