//! Starting the tasks of a process, one file per kind of work. Nothing here waits for a server.

pub(super) mod front;
pub(super) mod health;
pub(super) mod maintenance;
pub(super) mod operations;
pub(super) mod traces;
pub(super) mod worker;
