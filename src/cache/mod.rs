//! Layer 3: records to `dataset.dat`, `index.dat` and `manifest.json`, and the view of them that a run maps.
//!
//! ```text
//! files --input--> digest --spec--> key --entry--> view                                        an entry is there
//! files --input--> pieces --batch (all threads)--> bodies --writer (in order)--> entry --> view  it is not
//! ```
//!
//! Promises: an entry is complete or absent, and any doubt about one is a miss that heals; the key is the hash of everything
//! that a build sees; the same input and settings give the same bytes for any number of threads.

mod anchors;
mod batch;
pub mod body;
mod body_media;
mod build;
pub mod check;
mod entry;
mod flags;
mod folder;
mod gzip;
mod how;
mod input;
pub mod layout;
mod lock;
mod manifest;
mod memo;
mod open;
mod pack;
pub mod prompt;
mod prompt_aiperf;
mod prompt_corpus;
pub mod prompt_tokenizer;
mod publish;
mod recent;
mod report;
pub mod rows;
mod sharing;
pub mod spec;
pub mod spool;
pub mod store;
mod view;
mod writer;

pub use body::{Asked, CheckLengths, Multipliers, Shaping};
pub use flags::Flags;
pub use how::{Event, How};
pub use input::Origin;
pub use manifest::Manifest;
pub use open::{BuildRequest, CacheState, Opened, WhenFull, open_or_build};
pub use report::{BuildReport, Lengths, Sizes, Tokens};
pub use sharing::Sharing;
pub use spec::{Dedup, Digest, Key, Reading, Spec, Store};
pub use view::View;

#[cfg(test)]
mod tests;
