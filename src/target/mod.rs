//! Layer 6: the built-in reference server.

pub mod options;
mod request;
