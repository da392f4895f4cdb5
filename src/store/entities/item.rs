use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "items")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub sale_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub sku: String,
    pub stock: i64,
    pub sold: i64,
    pub version: i64,
    pub limit_per_user: Option<i32>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
