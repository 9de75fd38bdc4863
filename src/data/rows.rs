//! The row of one issued request, and the spools that a worker writes while the load runs.
//!
//! A spool is a file of the run directory in this machine's own byte order: it never leaves the machine, the report layer
//! makes `records.*`, `responses.jsonl` and the rest of it after the run and removes it. A spool that ends inside an element
//! (the process was killed, the disk was full) is good up to that element.
//!
//! ```text
//! rows-<worker>.spool        32 bytes header, then Row, Row, ... in the order in which the requests ended
//! chunks-<worker>.spool      32 bytes header, then for each row its `stamps` stamps of content events, 8 bytes each
//! responses-<worker>.spool   32 bytes header, then frames: PieceHead, `bytes` bytes of the response on that connection,
//!                            or PieceHead with `bytes` = END and the Row of the request that ended there
//!
//! header: offset  0   8 magic                 offset 16   8 wall clock of stamp 0, ns since the Unix epoch
//!                 8   4 bytes of an element           24   8 zero
//!                12   4 worker
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{ids::Nanos, metric::Metric};

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
    /// Stamps of its content events in the chunk spool; 0 without one.
    pub stamps: u32,
    /// Zero.
    pub reserved: u32,
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
    /// Flag: the output tokens were counted after the run, from the kept text.
    pub const OUTPUT_COUNTED: u8 = 16;
    /// Flag: the kept response is not whole: it was longer than what is kept of one.
    pub const KEPT_IN_PART: u8 = 32;
    /// Flag: the client broke it off on purpose (`--cancel-rate`); its outcome is that of a cut one.
    pub const CANCELLED: u8 = 64;

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
        stamps: 0,
        reserved: 0,
    };

    /// The recorded value of a metric of one request, by the formulas of the metrics contract; none where it has none.
    #[inline]
    pub fn value(&self, metric: Metric) -> Option<u64> {
        let gap = |from: Nanos, to: Nanos| Some(to.get()?.saturating_sub(from.get()?));
        let tokens = |n: u32| (n != NONE_U32).then_some(u64::from(n));
        let stream = self.content_events != NONE_U32;
        let end = if stream && self.last_token.is_some() { self.last_token } else { self.done };
        match metric {
            Metric::RequestLatency => gap(self.start, end),
            Metric::RequestLatencyFromSchedule => gap(self.due, end),
            Metric::TimeToFirstByte => gap(self.start, self.first_byte),
            Metric::SendTime => gap(self.start, self.sent),
            Metric::ScheduleLag => gap(self.due, self.start),
            Metric::ConnectTime => (self.connect_ns != u64::MAX).then_some(self.connect_ns),
            Metric::TlsTime => (self.tls_ns != u64::MAX).then_some(self.tls_ns),
            Metric::TimeToFirstToken => gap(self.start, self.first_token),
            Metric::TimeToFirstTokenFromSchedule => gap(self.due, self.first_token),
            Metric::TimeToFirstOutputToken => gap(self.start, self.first_output),
            Metric::TimeToSecondToken => gap(self.first_token, self.second_token),
            Metric::InterTokenLatency => self.inter_token_ns(),
            Metric::OutputTokenThroughputPerUser => {
                self.inter_token_ns().filter(|&ns| ns > 0).map(|ns| 1_000_000_000_000 / ns)
            }
            Metric::StreamEndLatency if stream => gap(self.start, self.done),
            Metric::StreamEndLatency | Metric::InterChunkLatency => None,
            Metric::OutputSequenceLength => tokens(self.output_tokens),
            Metric::InputSequenceLength => tokens(self.input_tokens),
            Metric::ReasoningTokenCount => tokens(self.reasoning_tokens),
        }
    }

    /// (last token - first token) / (tokens - 1); none below two tokens.
    #[inline]
    fn inter_token_ns(&self) -> Option<u64> {
        if self.output_tokens == NONE_U32 || self.output_tokens < 2 {
            return None;
        }
        Some(self.last_token.get()?.saturating_sub(self.first_token.get()?) / u64::from(self.output_tokens - 1))
    }

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
    /// The header of a worker's spool.
    pub const fn new(kind: Spool, worker: u16, anchor_unix_ns: u64) -> Self {
        Self {
            magic: kind.magic(),
            row_bytes: kind.element_bytes(),
            worker: worker as u32,
            anchor_unix_ns,
            reserved: 0,
        }
    }
}

const _: () = assert!(size_of::<SpoolHeader>() == 32);

/// What a spool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spool {
    /// [`Row`]s.
    Rows,
    /// Stamps of content events.
    Chunks,
    /// Responses in pieces.
    Responses,
}

impl Spool {
    /// Name and version of the format.
    pub const fn magic(self) -> [u8; 8] {
        match self {
            Self::Rows => *b"RLROWS02",
            Self::Chunks => *b"RLCHNK01",
            Self::Responses => *b"RLRESP01",
        }
    }

    const fn element_bytes(self) -> u32 {
        match self {
            Self::Rows => size_of::<Row>() as u32,
            Self::Chunks => size_of::<Nanos>() as u32,
            Self::Responses => size_of::<PieceHead>() as u32,
        }
    }

    /// What stands before the worker's number in the file's name.
    pub const fn stem(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Chunks => "chunks",
            Self::Responses => "responses",
        }
    }

    /// File name of a worker's spool in the run directory.
    pub fn name(self, worker: u16) -> String {
        format!("{}-{worker}.spool", self.stem())
    }
}

/// Before each piece of a response, and before the row that ends one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PieceHead {
    /// Connection slot of the worker.
    pub connection: u32,
    /// Bytes that follow, or [`PieceHead::END`].
    pub bytes: u32,
    /// At the end: which row of the worker's row spool it is, from 0.
    pub row: u64,
}

impl PieceHead {
    /// The response has ended: its [`Row`] follows.
    pub const END: u32 = u32::MAX;
}

const _: () = assert!(size_of::<PieceHead>() == 16);

/// What a run keeps of each request while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The folder of the spools.
    pub folder: std::path::PathBuf,
    /// The stamp of every content event.
    pub chunk_times: bool,
    /// So many responses, over all workers; 0 for none, `u64::MAX` for all.
    pub responses: u64,
}

#[cfg(test)]
impl Row {
    /// A stream of four content events, every stamp known.
    pub fn for_tests() -> Self {
        Self {
            due: Nanos(90),
            start: Nanos(100),
            sent: Nanos(110),
            first_byte: Nanos(200),
            first_token: Nanos(300),
            first_output: Nanos(350),
            second_token: Nanos(340),
            last_token: Nanos(700),
            done: Nanos(900),
            output_tokens: 5,
            content_events: 4,
            status: 200,
            ..Self::EMPTY
        }
    }
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

    #[test]
    fn formulas_are_those_of_the_contract() {
        let r = Row::for_tests();
        for (metric, want) in [
            (Metric::RequestLatency, 600),
            (Metric::RequestLatencyFromSchedule, 610),
            (Metric::TimeToFirstByte, 100),
            (Metric::SendTime, 10),
            (Metric::ScheduleLag, 10),
            (Metric::TimeToFirstToken, 200),
            (Metric::TimeToFirstTokenFromSchedule, 210),
            (Metric::TimeToFirstOutputToken, 250),
            (Metric::TimeToSecondToken, 40),
            (Metric::InterTokenLatency, 100),
            (Metric::StreamEndLatency, 800),
            (Metric::OutputSequenceLength, 5),
            (Metric::OutputTokenThroughputPerUser, 10_000_000_000),
        ] {
            assert_eq!(r.value(metric), Some(want), "{metric:?}");
        }
        assert_eq!(r.value(Metric::InputSequenceLength), None);
        let plain = Row { content_events: NONE_U32, last_token: Nanos::NONE, ..r };
        assert_eq!(plain.value(Metric::RequestLatency), Some(800), "done, where there is no stream");
        assert_eq!(plain.value(Metric::StreamEndLatency), None);
        let one = Row { output_tokens: 1, ..r };
        assert_eq!(one.value(Metric::InterTokenLatency), None, "one token has no gap");
    }
}
