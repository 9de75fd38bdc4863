//! Layer 1: the only unsafe code of the crate: ring, memory maps, sockets, cores, clock, signals.
//!
//! Promises: every function here is safe to call with any arguments; what it hands out are ids, spans and copies, never
//! pointers. Must not import anything but `data`.
#![allow(unsafe_code)]

pub mod area;
pub mod cgroup;
pub mod clock;
pub mod cpu;
pub mod fs;
pub mod limit;
pub mod mem;
pub mod resident;
pub mod ring;
mod sendfile;
pub mod signal;
pub mod sock;
pub mod spool;
