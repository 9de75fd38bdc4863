//! Where body bytes lie in `dataset.dat`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A stretch of the data file: `[offset, offset + bytes)`. 16 bytes, little endian on disk, used in place from the mapped index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length; at least 1 in an index.
    pub bytes: u64,
}

impl Span {
    /// One past the last byte; saturates, so that a damaged index is out of range and not wrapped into it.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

const _: () = assert!(size_of::<Span>() == 16);
