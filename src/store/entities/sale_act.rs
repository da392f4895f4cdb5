use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "sale_acts")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub sale_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    pub kind: String,
    pub args: String,
    pub sku: Option<String>,
    pub units: Option<i64>,
    pub item_version: Option<i64>,
    pub actor: String,
    pub reason: Option<String>,
    pub state: String,
    pub result: Option<String>,
    pub at_ms: i64,
    pub ended_at_ms: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
