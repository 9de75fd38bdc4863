//! Layer 7: flags to plan to calls of the layers.
