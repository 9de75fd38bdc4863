//! The row of one issued request, and the spool that a worker writes its rows to.
//!
//! A spool is `rows-<worker>.spool` in the run directory: one [`SpoolHeader`], then [`Row`]s back to back, in the order in
//! which the requests ended. Both are this machine's own byte order: a spool never leaves the machine, `report::records`
//! turns it into `records.jsonl` or `records.parquet` after the run and removes it. A spool that ends inside a row (the
//! process was killed) is good up to that row.
//!
//! ```text
//! offset  0   8 magic "RLROWS01"       offset 16   8 wall clock of stamp 0, ns since the Unix epoch
//!         8   4 bytes of one row               24   8 zero
//!        12   4 worker                         32   Row, Row, Row, ...
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ids::Nanos;

/// A count that is not known.
pub const NONE_U32: u32 = u32::MAX;

/// What happened to one issued request: succeeded, failed and cut ones alike. 160 bytes, 8-byte aligned, no padding.
///
/// Stamps are nanoseconds since the run's anchor; [`Nanos::NONE`] is a stamp that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Row {
    /// The plan's time for it.
    pub due: Nanos,
    /// Its first send was handed to the ring; none when its connection failed.
    pub start: Nanos,
    /// The kernel had taken its last byte.
    pub sent: Nanos,
    /// First byte of the final response.
    pub first_byte: Nanos,
    /// First event with content.
    pub first_token: Nanos,
    /// First event with content that is not reasoning.
    pub first_output: Nanos,
    /// Second event with content.
    pub second_token: Nanos,
    /// Last event with content.
    pub last_token: Nanos,
    /// The response was complete, or the request failed, or it was cut.
    pub done: Nanos,
    /// Time to connect, when a connection was opened on its behalf; `u64::MAX` otherwise.
    pub connect_ns: u64,
    /// Time of the TLS handshake after that; `u64::MAX` otherwise.
    pub tls_ns: u64,
    /// Bytes that the kernel took, head included.
    pub bytes_sent: u64,
    /// Bytes received, head included.
    pub bytes_received: u64,
    /// Record of the dataset, from 0.
    pub record: u32,
    /// Session of the record, from 0; [`NONE_U32`] without sessions.
    pub session: u32,
    /// Turn of the record in its session, from 0.
    pub turn: u32,
    /// Which pass over the dataset (or instance of the session) it belongs to, from 0.
    pub instance: u32,
    /// Connection slot of the worker; [`NONE_U32`] when it had none.
    pub connection: u32,
    /// Requests that this connection had carried before; 0 on a fresh one.
    pub connection_use: u32,
    /// Prompt tokens; [`NONE_U32`] when not known.
    pub input_tokens: u32,
    /// Tokens of the answer, reasoning included; [`NONE_U32`] when not known.
    pub output_tokens: u32,
    /// Reasoning tokens of the answer; [`NONE_U32`] when not known.
    pub reasoning_tokens: u32,
    /// Events with content; [`NONE_U32`] when the answer was no stream.
    pub content_events: u32,
    /// Status; 0 when none came.
    pub status: u16,
    /// Worker.
    pub worker: u16,
    /// Index of the target.
    pub target: u16,
    /// How it ended: [`super::outcome::Outcome::code`].
    pub outcome: u8,
    /// [`Row::REUSED`] and the other flags.
    pub flags: u8,
    /// Zero.
    pub reserved: u64,
}

impl Row {
    /// Flag: the connection had carried a request before.
    pub const REUSED: u8 = 1;
    /// Flag: a request of the warm-up, left out of every figure.
    pub const WARMUP: u8 = 2;
    /// Flag: its body went out in a zero-copy send that the kernel did not copy.
    pub const ZERO_COPY: u8 = 4;
    /// Flag: the input tokens come from the index, not from the server.
    pub const INPUT_FROM_INDEX: u8 = 8;

    /// A row in which nothing has happened yet.
    pub const EMPTY: Self = Self {
        due: Nanos::NONE,
        start: Nanos::NONE,
        sent: Nanos::NONE,
        first_byte: Nanos::NONE,
        first_token: Nanos::NONE,
        first_output: Nanos::NONE,
        second_token: Nanos::NONE,
        last_token: Nanos::NONE,
        done: Nanos::NONE,
        connect_ns: u64::MAX,
        tls_ns: u64::MAX,
        bytes_sent: 0,
        bytes_received: 0,
        record: 0,
        session: NONE_U32,
        turn: 0,
        instance: 0,
        connection: NONE_U32,
        connection_use: 0,
        input_tokens: NONE_U32,
        output_tokens: NONE_U32,
        reasoning_tokens: NONE_U32,
        content_events: NONE_U32,
        status: 0,
        worker: 0,
        target: 0,
        outcome: 0,
        flags: 0,
        reserved: 0,
    };

    /// True when a flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

const _: () = assert!(size_of::<Row>() == 160 && align_of::<Row>() == 8);

/// First bytes of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SpoolHeader {
    /// [`SpoolHeader::MAGIC`].
    pub magic: [u8; 8],
    /// Size of a row.
    pub row_bytes: u32,
    /// Worker.
    pub worker: u32,
    /// Wall clock of stamp 0, nanoseconds since the Unix epoch.
    pub anchor_unix_ns: u64,
    /// Zero.
    pub reserved: u64,
}

impl SpoolHeader {
    /// Name and version of the format.
    pub const MAGIC: [u8; 8] = *b"RLROWS01";

    /// The header of a worker's spool.
    pub const fn new(worker: u16, anchor_unix_ns: u64) -> Self {
        Self {
            magic: Self::MAGIC,
            row_bytes: size_of::<Row>() as u32,
            worker: worker as u32,
            anchor_unix_ns,
            reserved: 0,
        }
    }
}

const _: () = assert!(size_of::<SpoolHeader>() == 32);

/// File name of a worker's spool in the run directory.
pub fn spool_name(worker: u16) -> String {
    format!("rows-{worker}.spool")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_their_bytes() {
        let row = Row { due: Nanos(7), status: 200, flags: Row::REUSED, ..Row::EMPTY };
        let back = Row::read_from_bytes(row.as_bytes()).unwrap();
        assert_eq!(back, row);
        assert!(back.has(Row::REUSED) && !back.has(Row::WARMUP));
        assert_eq!(back.start.get(), None);
    }
}
