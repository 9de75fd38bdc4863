//! Newtypes for what is counted, so that an index into one table cannot be used on another.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into its own table.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A record of the dataset: its row in the index columns, from 0, in the order of the input.
    RecordId(u32)
}
id! {
    /// A connection slot of one worker, from 0.
    ConnId(u32)
}
id! {
    /// A worker of the run, from 0; one thread, one ring, one core.
    WorkerId(u16)
}

/// Nanoseconds of the monotonic clock, counted from the run's anchor; `Nanos::NONE` is a stamp that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A stamp that did not happen. It sorts after every time, so a deadline of none never comes.
    pub const NONE: Self = Self(u64::MAX);
    /// The anchor itself.
    pub const ZERO: Self = Self(0);

    /// The stamp, or `None` for [`Nanos::NONE`].
    #[inline]
    pub const fn get(self) -> Option<u64> {
        if self.0 == u64::MAX { None } else { Some(self.0) }
    }

    /// True when the stamp happened.
    #[inline]
    pub const fn is_some(self) -> bool {
        self.0 != u64::MAX
    }

    /// `self + ns`; none stays none, and a sum past the end of time is none.
    #[inline]
    pub const fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to `self`, 0 when `earlier` is later. Both must have happened.
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Default for Nanos {
    fn default() -> Self {
        Self::NONE
    }
}
