//! `manifest.json`: what an entry is and what made it. Written last; an entry without a good one is none.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    layout,
    report::BuildReport,
    spec::{Key, Spec},
};

/// See the head of this file. Unknown fields are refused: they belong to another version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Layout version.
    pub version: u32,
    /// Name of the entry: the hash of `spec`.
    pub key: Key,
    /// Everything that shaped it.
    pub spec: Spec,
    /// Records.
    pub records: u64,
    /// Body bytes, summed over records.
    pub body_bytes: u64,
    /// Length of `dataset.dat`.
    pub data_bytes: u64,
    /// Checksum of `dataset.dat`.
    pub data_check: String,
    /// What the file system said of `dataset.dat` when it was written (`Stamp::identity`). A file of which it says something
    /// else was copied or touched, and is read whole before it is used. None where no such file was left.
    pub data_stamp: Option<String>,
    /// Length of `index.dat`.
    pub index_bytes: u64,
    /// Checksum of the header of `index.dat`, which holds those of its columns.
    pub index_check: String,
    /// Bad records left out.
    pub skipped: u64,
    /// What was seen in the bodies.
    pub report: BuildReport,
    /// The dataset that an entry without data points into, as it was named when it was built.
    pub reference: Option<PathBuf>,
    /// Program and version.
    pub made_by: String,
    /// UTC, RFC 3339.
    pub made_at: String,
    /// Seconds that the build took, reading to renaming.
    pub seconds: f64,
}

impl Manifest {
    /// Reads a manifest and holds it to itself. The error says in a few words what is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        // The version first: another one may have other fields, and that is the better reason to give.
        let version: Version = serde_json::from_slice(text).map_err(|_| "manifest.json is damaged".to_owned())?;
        if version.version != u64::from(layout::VERSION) {
            return Err(format!("it has layout version {}, this is {}", version.version, layout::VERSION));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|_| "manifest.json is damaged".to_owned())?;
        if manifest.spec.key() != manifest.key {
            return Err("manifest.json has a key that is not that of its spec".into());
        }
        Ok(manifest)
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}
