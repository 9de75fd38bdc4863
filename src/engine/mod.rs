//! Layer 5: the workers.
