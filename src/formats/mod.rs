//! Layer 2: dataset bytes to records, one file a format.
