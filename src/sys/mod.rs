//! Layer 1: the only unsafe code of the crate: ring, memory maps, sockets, cores, clock, signals.
#![allow(unsafe_code)]

pub mod fs;
pub mod mem;
