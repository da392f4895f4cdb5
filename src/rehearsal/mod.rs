//! Everything that is not there at noon of the sale: private servers, rehearsed load, the stack under
//! attack, and measurements.

pub mod bench;
pub mod chaos;
pub mod drill;
pub mod servers;
