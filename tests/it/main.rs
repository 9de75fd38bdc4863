//! The one integration binary: real sockets, the real ring, the release-shaped program.

// A failed expectation is how a test fails, in its helpers too.
#![allow(clippy::unwrap_used)]

mod report;
mod target;
