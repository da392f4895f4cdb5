pub mod late_calls;
pub mod lent;
pub mod outages;
pub mod plain_answers;
pub mod points;
pub mod pooler;
pub mod processes;
pub mod stalls;
