//! Fixed slots of plain memory that cost nothing until they are touched.

use memmap2::{MmapMut, MmapOptions};

use crate::data::{Error, Result};

/// `slots` areas of `bytes` each, in one anonymous map without reserved swap: only pages that were written are resident, so a
/// generous slot size costs address space alone.
#[derive(Debug)]
pub struct Area {
    memory: MmapMut,
    bytes: usize,
}

impl Area {
    /// Maps the area.
    ///
    /// Errors: no address space left for it.
    pub fn new(slots: usize, bytes: usize) -> Result<Self> {
        let total = slots.saturating_mul(bytes).max(1);
        let memory = MmapOptions::new().len(total).no_reserve_swap().map_anon().map_err(|e| Error::Environment {
            call: "mmap",
            what: format!("{total} bytes of address space: {e}"),
            cure: "ask for fewer connections with -c, or raise the address-space limit (ulimit -v)".into(),
        })?;
        Ok(Self { memory, bytes })
    }

    /// One slot, to read.
    #[inline]
    pub fn slot(&self, index: usize) -> &[u8] {
        &self.memory[index * self.bytes..(index + 1) * self.bytes]
    }

    /// One slot, to write.
    #[inline]
    pub fn slot_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.memory[index * self.bytes..(index + 1) * self.bytes]
    }
}
