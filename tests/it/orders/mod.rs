pub mod control;
pub mod front;
pub mod hostile;
pub mod life;
pub mod path;
pub mod payments;
pub mod terms;
pub mod together;
