//! The one integration binary: real sockets, the real ring, the program as it is run.

// A failed expectation is how a test fails, in its helpers too.
#![allow(clippy::unwrap_used)]

mod alloc;
mod cache;
mod calibrate;
mod cli;
mod dataset;
mod net;
mod peers;
mod report;
mod run;
mod shapes;
mod streams;
mod support;
mod target;
mod tidy;
mod tls;
