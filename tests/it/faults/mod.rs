pub mod late_calls;
pub mod outages;
pub mod plain_answers;
pub mod points;
pub mod processes;
pub mod stalls;
