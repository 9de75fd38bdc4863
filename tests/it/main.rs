//! The one integration binary: real sockets, the real ring, the release-shaped program.

mod report;
mod target;
