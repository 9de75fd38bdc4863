//! Layer 3: records to `dataset.dat`, `index.dat` and `manifest.json`, and the view of them that a run maps.

pub mod check;
pub mod flags;
pub mod layout;
pub mod manifest;
pub mod report;
pub mod rows;
pub mod spec;
pub mod spool;
pub mod view;

pub use flags::Flags;
pub use manifest::Manifest;
pub use report::BuildReport;
pub use spec::{Dedup, Digest, Key, Spec, Store};
pub use view::View;
