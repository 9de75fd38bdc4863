//! Layer 4: the plan and the index to what is due, when, and on which worker.
//!
//! A mode is data here, never another loop: every shape becomes a [`Source`] a worker that yields units (roots of sessions, or
//! single records) in order, with a due time or without one. Nothing is shared between workers: unit `u` belongs to worker
//! `u % workers`, so counts are exact and the union over workers is the asked process, whatever their number.

pub mod agenda;
mod arrival;
mod cap;
mod graph;
mod lanes;
mod order;
mod roots;
mod source;

pub use agenda::{Agenda, Free, Pick, Work};
pub use arrival::Curve;
pub use cap::ramp_of_slots;
pub use graph::{Edges, Graph};
pub use order::draw;
pub use roots::{Place, Roots};
pub use source::{Next, Source, Unit, record_ahead};
