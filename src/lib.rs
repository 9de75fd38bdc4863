//! `ringload`: replays stored request bodies over HTTP/1.1 as fast, or as exactly on time, as one Linux machine can, and says
//! truthfully what happened.
//!
//! ```text
//! dataset line --formats--> records --cache::build--> dataset.dat + index.dat             offline
//! index[RecordId] --pace--> what is due, when, a worker's part                           start-up
//! due --worker--> connection[ConnId] --ring--> SQE --kernel--> CQE                        hot
//! CQE --token--> connection[ConnId] --wire--> events --worker--> series, timeline, rows   hot
//! worker results --report--> summary --outputs--> text, JSON, histogram, HTML             after
//! ```
//!
//! Layers, in import order; a module imports from lower layers and its own folder only (held by `tests/it/tidy.rs`):
//! `data` 0, `sys` 1, `formats` and `wire` 2 (blind to each other and to `sys`), `cache` 3, `pace` 4, `engine` 5, `report` and
//! `target` 6, `cli` 7.
//!
//! Invariants:
//!
//! 1. After set-up a worker thread never allocates, frees, locks, logs or formats. The one exception are the calls into rustls
//!    (`engine::tls`): a connection over TLS allocates when it opens and closes, and rustls does so for each record.
//! 2. Memory given to the kernel outlives its last completion, notification included.
//! 3. No IO_LINK, no SKIP_SUCCESS: what is in the kernel is submitted minus final completions, and zero after a clean drain.
//!    A slot is free only when its send result *and* its response (or their errors) are in.
//! 4. Pointers exist only in `sys`. Everything else has ids and spans.
//! 5. Every loop and queue has a bound in `data::limits`, with its reason.
//! 6. Stale completions (a slot used again) are told by a generation in `user_data`, counted and dropped.
//! 7. `due <= start <= first byte <= first token <= last token <= done`; a stamp that did not happen is none, not 0.
//! 8. Parsers are resumable at any byte, keep no bytes, never panic; any split of the same bytes gives the same events.
//! 9. `build` reads nothing but the `Spec` and the input, and the key hashes nothing but those.
//! 10. A cache entry is complete or absent. Any doubt is a miss that heals; a lock that cannot be had means a private build.
//! 11. `scheduled = issued + missed`, `issued = succeeded + failed + cut`: asserted at the end of every run.
//! 12. The same results give the same report, byte for byte. No randomness without a seed that is printed.

pub mod data;
pub mod sys;

pub mod formats;
pub mod wire;

pub mod cache;

pub mod pace;

pub mod engine;

pub mod report;
pub mod target;

pub mod cli;
