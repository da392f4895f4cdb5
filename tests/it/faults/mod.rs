pub mod outages;
pub mod points;
pub mod processes;
