use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "payment_events")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub provider: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub event_id: String,
    pub kind: String,
    pub sale_id: String,
    pub order_id: Uuid,
    pub user_id: Option<String>,
    pub state: String,
    pub new_order_id: Option<Uuid>,
    pub detail: Option<String>,
    pub received_at_ms: i64,
    pub due_at_ms: i64,
    pub updated_at_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
