//! Layer 2: bytes to events and back: request head, response framing, chunked, event streams, API bodies.
//!
//! Everything here is pure: no I/O, no clock, no allocation after construction. The parsers keep no bytes of what they
//! read, may be stopped and resumed at any byte, and never panic whatever a server sends.

pub mod api;
pub mod fuzz;
mod json;
pub mod request;
pub mod response;
pub mod scan;
mod sse;
pub mod text;
mod words;
