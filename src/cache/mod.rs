//! Layer 3: records to `dataset.dat`, `index.dat` and `manifest.json`, and the view of them that a run maps.
