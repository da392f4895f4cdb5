pub mod archive;
pub mod compare;
pub mod database_behind;
pub mod pages;
pub mod repair;
pub mod replay;
pub mod replay_runs;
