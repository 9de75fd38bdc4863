//! The one integration binary: real sockets, the real ring, the program as it is run.

mod alloc;
mod cli;
mod report;
mod run;
mod support;
mod target;
mod tidy;
