//! Layer 0: the tables and the words. Plain data that every other layer reads: ids, units, limits, errors and outcomes,
//! dataset records, the plan of a run, the results of a run.
//!
//! Promises: no I/O, no clock, no thread; nothing here imports another folder of the crate.

pub mod base64;
pub mod error;
pub mod ids;
pub mod json;
pub mod limits;
pub mod metric;
pub mod nearest;
pub mod net;
pub mod outcome;
pub mod plan;
pub mod record;
pub mod results;
pub mod rows;
pub mod span;
pub mod units;

pub use error::{Error, Result};
pub use ids::{ConnId, Nanos, RecordId, WorkerId};
pub use span::Span;
