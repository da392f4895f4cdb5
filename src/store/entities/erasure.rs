use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "erasures")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub sale_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub user_id: String,
    pub asked_at_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
