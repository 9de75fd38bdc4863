//! Layer 6: the built-in reference server.
