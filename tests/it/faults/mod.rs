pub mod late_calls;
pub mod outages;
pub mod points;
pub mod processes;
pub mod stalls;
