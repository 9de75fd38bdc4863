//! One connection slot: the cache line that a completion touches, and the colder rest.

use crate::{
    data::{
        Nanos, RecordId,
        rows::{NONE_U32, Row},
    },
    wire::{response::Body, scan::Scan},
};

use super::stamps::Chain;

/// Where a slot stands.
///
/// ```text
/// Closed --open--> Connecting --> (Handshaking) --> Idle <--> (Fetching) <--> Busy --> Closing --all final--> Closed
///                       '--------------'------ failed -----------------------------------^
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// No socket.
    Closed,
    /// Connect in the kernel.
    Connecting,
    /// Connected, receive armed; the TLS handshake is under way.
    Handshaking,
    /// Open, receive armed, nothing asked.
    Idle,
    /// Open, receive armed, nothing asked; the body of the request that is on it is being read from the disk. It waits for its
    /// connection still ([`flag::WAITED`]).
    Fetching,
    /// A request is on it.
    Busy,
    /// Shut down; waits for what is in the kernel.
    Closing,
}

/// What a slot has, one bit each.
pub(super) mod flag {
    /// A receive is armed.
    pub const RECV: u16 = 1;
    /// A send is in the kernel, its notification included.
    pub const SEND: u16 = 1 << 1;
    /// A request waits for this connection to open.
    pub const WAITED: u16 = 1 << 2;
    /// The head of the response was read.
    pub const HEAD: u16 = 1 << 3;
    /// The response is complete; only the send is not.
    pub const ANSWERED: u16 = 1 << 4;
    /// At least one response was complete on this connection.
    pub const KEPT: u16 = 1 << 5;
    /// The connection cannot carry another request.
    pub const LAST: u16 = 1 << 6;
    /// The request is one of the warm-up.
    pub const WARMUP: u16 = 1 << 7;
    /// The slot stands in the idle ring.
    pub const LISTED: u16 = 1 << 8;
    /// The send failed; the response may still come.
    pub const SEND_FAILED: u16 = 1 << 9;
    /// The response is looked into.
    pub const SCAN: u16 = 1 << 10;
    /// The response is an event stream.
    pub const STREAM: u16 = 1 << 11;
    /// The slot waits for receive buffers.
    pub const STARVED: u16 = 1 << 12;
    /// Bytes of the request were sent without copying.
    pub const ZERO_COPY: u16 = 1 << 13;
    /// The response says that its payload is encoded.
    pub const ENCODED: u16 = 1 << 14;
    /// The request goes by copy from here on: the kernel had no memory for a zero-copy send.
    pub const COPY_ONLY: u16 = 1 << 15;

    /// What belongs to one request and not to its connection.
    pub const OF_REQUEST: u16 =
        HEAD | ANSWERED | WARMUP | SEND_FAILED | SCAN | STREAM | ZERO_COPY | ENCODED | COPY_ONLY;
}

/// What a slot has beside [`flag`], one bit each; rare enough to be looked at by name.
pub(super) mod mark {
    /// The request has no first token yet, and takes one of `--prefill-concurrency`.
    pub const PREFILL: u8 = 1;
    /// The request is one of those that are broken off (`--cancel-rate`).
    pub const CANCEL: u8 = 1 << 1;
    /// It was broken off.
    pub const CANCELLED: u8 = 1 << 2;
    /// The request belongs to a phase before the one that is played.
    pub const OLD: u8 = 1 << 3;
    /// The request that just ended was not the last of its session.
    pub const GOES_ON: u8 = 1 << 4;
    /// The idle connection belongs to a session (`--reuse session`).
    pub const HELD: u8 = 1 << 5;
    /// The request waited for the disk.
    pub const COLD: u8 = 1 << 6;
    /// The disk could not be asked: the request is sent without looking again.
    pub const BLIND: u8 = 1 << 7;

    /// What belongs to one request.
    pub const OF_REQUEST: u8 = PREFILL | CANCEL | CANCELLED | OLD | GOES_ON | COLD | BLIND;
}

/// What a completion touches. One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Conn {
    pub state: State,
    /// Operations of the slot that are not final.
    pub in_kernel: u8,
    pub flags: u16,
    pub generation: u16,
    pub status: u16,
    pub record: RecordId,
    pub target: u16,
    /// Interim responses before the final one: at most one more than [`crate::data::limits::INTERIM_RESPONSES_MAX`].
    pub interim: u8,
    /// [`mark`]s.
    pub marks: u8,
    /// Bytes of a head that came in pieces so far, in the carry area.
    pub carried: u32,
    /// Session instance.
    pub instance: u32,
    pub start: Nanos,
    pub first_byte: Nanos,
    pub body: Body,
}

const _: () = assert!(size_of::<Conn>() == 64);
const _: () = assert!(crate::data::limits::INTERIM_RESPONSES_MAX < u8::MAX as u32);

impl Conn {
    pub const CLOSED: Self = Self {
        state: State::Closed,
        in_kernel: 0,
        flags: 0,
        generation: 0,
        status: 0,
        record: RecordId(0),
        target: 0,
        interim: 0,
        marks: 0,
        carried: 0,
        instance: 0,
        start: Nanos::NONE,
        first_byte: Nanos::NONE,
        body: Body::new(crate::wire::response::Framing::None),
    };

    #[inline]
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// True when a receive is to be armed.
    #[inline]
    pub const fn receives(&self) -> bool {
        matches!(self.state, State::Handshaking | State::Idle | State::Fetching | State::Busy)
    }

    #[inline]
    pub const fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    #[inline]
    pub const fn set(&mut self, flag: u16) {
        self.flags |= flag;
    }

    #[inline]
    pub const fn clear(&mut self, flag: u16) {
        self.flags &= !flag;
    }
}

/// What is touched once or twice a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub due: Nanos,
    pub sent: Nanos,
    /// Bytes of the request that the kernel took, and all of them; over TLS before encryption.
    pub sent_bytes: u64,
    pub total_bytes: u64,
    pub received_bytes: u64,
    pub unit: u64,
    pub head_bytes: u32,
    /// Requests that this connection carried before.
    pub uses: u32,
    /// Bytes kept of the response for an error sample: at its front and at its end.
    pub kept_first: u16,
    pub kept_last: u16,
    /// Which of the target's addresses, and how many were tried.
    pub address: u16,
    pub tried: u16,
    /// Phase that the request belongs to.
    pub phase: u16,
    /// Bytes of a zero-copy send whose notification is still to come.
    pub unnotified_bytes: u64,
    /// The send in the kernel goes by `sendfile`.
    pub by_file: bool,
    /// What of the body is being read from the disk: its first byte in the data file, and how many.
    pub fetch_from: u64,
    pub fetch_bytes: u32,
    /// When the connect began, and how long it took when it was on this request's behalf.
    pub connect_began: Nanos,
    pub connect_ns: u64,
    /// When the TLS handshake began, and how long it took when it was on this request's behalf.
    pub tls_began: Nanos,
    pub tls_ns: u64,
    /// Last time that bytes of the response came.
    pub last_byte: Nanos,
    /// Whether its response is kept, and how much of it was.
    pub keeps: bool,
    pub kept_bytes: u64,
    /// How long the connection is used after a response, as the server told; all bits set when it did not.
    pub keep_ns: u64,
}

impl Trip {
    pub const EMPTY: Self = Self {
        due: Nanos::NONE,
        sent: Nanos::NONE,
        sent_bytes: 0,
        total_bytes: 0,
        received_bytes: 0,
        unit: 0,
        head_bytes: 0,
        uses: 0,
        kept_first: 0,
        kept_last: 0,
        address: 0,
        tried: 0,
        phase: 0,
        unnotified_bytes: 0,
        by_file: false,
        fetch_from: 0,
        fetch_bytes: 0,
        connect_began: Nanos::NONE,
        connect_ns: u64::MAX,
        tls_began: Nanos::NONE,
        tls_ns: u64::MAX,
        last_byte: Nanos::NONE,
        keeps: false,
        kept_bytes: 0,
        keep_ns: u64::MAX,
    };
}

/// Connects to one address that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dead {
    pub connects: u64,
    /// The last one's reason.
    pub errno: i32,
}

impl Dead {
    pub fn add(&mut self, errno: i32) {
        self.connects += 1;
        self.errno = errno;
    }
}

/// What an event stream leaves behind; touched by streams alone.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub scan: Scan,
    pub first_token: Nanos,
    pub first_output: Nanos,
    pub second_token: Nanos,
    pub last_token: Nanos,
    pub content_events: u32,
    /// The time of every content event; released when the request ends.
    pub times: Chain,
}

impl Stream {
    pub fn new(scan: Scan) -> Self {
        Self {
            scan,
            first_token: Nanos::NONE,
            first_output: Nanos::NONE,
            second_token: Nanos::NONE,
            last_token: Nanos::NONE,
            content_events: 0,
            times: Chain::EMPTY,
        }
    }

    /// Forgets the stream before.
    #[inline]
    pub fn begin(&mut self, scan: Scan) {
        debug_assert!(self.times.count == 0, "the times of the request before were released");
        *self = Self::new(scan);
    }

    /// Completes a row with what was seen: stamps of a stream, tokens that the server counted.
    #[inline]
    pub fn complete(&self, row: &mut Row, stream: bool) {
        let known = |n: Option<u64>| n.map_or(NONE_U32, |n| n.min(u64::from(NONE_U32 - 1)) as u32);
        if stream {
            row.first_token = self.first_token;
            row.first_output = self.first_output;
            row.second_token = self.second_token;
            row.last_token = self.last_token;
            row.content_events = self.content_events;
        }
        let usage = self.scan.usage();
        if usage.input.is_some() {
            row.input_tokens = known(usage.input);
            row.flags &= !Row::INPUT_FROM_INDEX;
        }
        row.output_tokens = known(usage.output);
        row.reasoning_tokens = known(usage.reasoning);
    }
}

/// Idle slots of one target, first in first out, so that load spreads evenly over the connections. A slot that left the idle
/// state keeps its place until it comes up and is skipped then; [`flag::LISTED`] keeps it from standing twice.
#[derive(Debug)]
pub(super) struct IdleRing {
    slots: Box<[u32]>,
    head: usize,
    len: usize,
}

impl IdleRing {
    pub fn new(capacity: u32) -> Self {
        Self { slots: vec![0; capacity.max(1) as usize].into(), head: 0, len: 0 }
    }

    #[inline]
    pub fn push(&mut self, slot: u32) {
        debug_assert!(self.len < self.slots.len());
        let at = (self.head + self.len) % self.slots.len();
        self.slots[at] = slot;
        self.len += 1;
    }

    #[inline]
    pub fn front(&self) -> Option<u32> {
        if self.len == 0 { None } else { Some(self.slots[self.head]) }
    }

    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slots[self.head];
        self.head = (self.head + 1) % self.slots.len();
        self.len -= 1;
        Some(slot)
    }
}
