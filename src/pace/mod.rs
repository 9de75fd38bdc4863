//! Layer 4: the plan and the index to what is due, when, and on which worker.
