//! The locks of the structures that several tasks share. `tests/races` compiles those structures with the locks of
//! a scheduler that tries out thread interleavings.

pub(super) use std::sync::{Arc, Mutex};
