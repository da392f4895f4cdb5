pub mod archive;
pub mod compare;
pub mod pages;
pub mod repair;
pub mod replay;
pub mod replay_runs;
