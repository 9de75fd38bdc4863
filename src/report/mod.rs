//! Layer 6: results to numbers to outputs, one file an output.
