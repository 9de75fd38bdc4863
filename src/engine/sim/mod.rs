//! The worker on a simulated ring: a kernel, a network and a server made from a seed, in virtual time.
//!
//! What the kernel may do it does here far more often: short sends, receives in pieces, no buffers, multishot receives that end
//! by themselves, zero-copy sends that fail, whose notification is late, says COPIED or only comes when the connection is aborted, connects that are refused
//! or hang, bodies that are not in memory, completions in any order between connections, a completion queue that overflows. What it may not do it never does,
//! and what a caller may not do is an assertion: a send area that is touched while it is in the kernel, a second receive, a
//! close with something in flight, a buffer that is read or given back without being lent.
//!
//! This file is long because it is one machine, and its parts know each other.
//!
//! `check` drives thousands of seeds and holds each run to what the server saw. A failure prints its seed; one seed alone is run
//! with `RINGLOAD_SIM_SEED=n cargo test sim`, more of them with `RINGLOAD_SIM_SEEDS=n`.

mod check;
mod server;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{
    io::Io,
    live::{Control, Halt},
};
use crate::{
    cache::View,
    data::{ConnId, Result, Span, limits},
    sys::{
        mem::Map,
        ring::{BufferId, Completion, Copying, Op, SendRefused, ZC_COPIED},
    },
};
use server::{Log, Peer, Tag};

/// How often what goes wrong, each out of 1,000.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// A send takes only a part.
    short_send: u32,
    /// A receive takes only a part.
    split: u32,
    /// A multishot receive ends after a completion.
    ends: u32,
    /// A zero-copy send fails for want of memory.
    no_memory: u32,
    /// A notification says that the bytes were copied.
    copied: u32,
    /// The peer acknowledges nothing, so that a notification comes only once the connection is aborted.
    unacknowledged: u32,
    /// A connect is refused.
    refused: u32,
    /// A connect never ends.
    connect_hangs: u32,
    /// A connect fails before it reaches the kernel.
    no_port: u32,
    /// A body is not in memory, or a part of it.
    cold: u32,
    /// The server does something other than answering well.
    server: u32,
}

/// A part of what the server sends.
#[derive(Debug)]
enum Part {
    Bytes { bytes: Vec<u8>, at: usize, tag: Option<Tag> },
    Fin { tag: Option<Tag> },
    Reset,
}

/// What happens later.
#[derive(Debug)]
enum Event {
    Connected(i32),
    Taken,
    Notified(i32),
    Arrives(Part),
    Fetched(i32),
    Cancelled,
}

/// A send in the kernel.
struct Sending {
    generation: u16,
    bytes: Vec<u8>,
    zero: bool,
    /// Its result was told; only the notification is to come.
    told: bool,
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sending({} bytes, zero copy: {}, told: {})", self.bytes.len(), self.zero, self.told)
    }
}

/// One slot's socket and its peer.
#[derive(Debug, Default)]
struct Sock {
    open: bool,
    /// Which socket of all: events of an earlier one are dropped.
    epoch: u64,
    connecting: Option<u16>,
    connected: bool,
    receive: Option<u16>,
    sending: Option<Sending>,
    fetching: Option<u16>,
    cancels: u32,
    shut: bool,
    inbox: VecDeque<Part>,
    peer: Peer,
}

impl Sock {
    fn in_kernel(&self) -> bool {
        self.connecting.is_some()
            || self.receive.is_some()
            || self.sending.is_some()
            || self.fetching.is_some()
            || self.cancels > 0
    }
}

/// See the head of this file.
struct SimRing<'a> {
    rng: Xoshiro256PlusPlus,
    time_ns: &'static AtomicU64,
    map: Arc<Map>,
    view: &'a View,
    control: &'a Control,
    halt: Option<(u64, Halt)>,
    faults: Faults,
    areas: Vec<Vec<u8>>,
    socks: Vec<Sock>,
    epochs: u64,
    events: BTreeMap<(u64, u64), (ConnId, u64, Event)>,
    event_order: u64,
    queue: VecDeque<Completion>,
    /// Completions that a full queue holds back until the next submit.
    queue_room: usize,
    held_back: VecDeque<Completion>,
    overflows: u64,
    buffers: Vec<Vec<u8>>,
    lent: Vec<bool>,
    free: Vec<u16>,
    returned: Vec<u16>,
    in_kernel: u64,
    /// Bytes that the kernel took.
    taken_bytes: u64,
    /// Stretches of bodies that were asked for.
    fetches: u64,
    turns: u64,
    log: Log,
    /// What was appended to each spool.
    spools: Vec<Vec<u8>>,
}

/// More turns than any run of these sizes takes: the worker hangs, or spins.
const TURNS_MAX: u64 = 4_000_000;

impl<'a> SimRing<'a> {
    fn new(
        seed: u64,
        time_ns: &'static AtomicU64,
        view: &'a View,
        control: &'a Control,
        faults: Faults,
        connections: u32,
    ) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let buffers = rng.random_range(1..=8usize) * rng.random_range(1..=4usize);
        let queue_room = if rng.random_bool(0.3) { rng.random_range(1..8) } else { 4096 };
        Self {
            time_ns,
            map: view.map().clone(),
            view,
            control,
            halt: None,
            faults,
            areas: (0..connections).map(|_| vec![0; 4 << 10]).collect(),
            socks: (0..connections).map(|_| Sock::default()).collect(),
            epochs: 0,
            events: BTreeMap::new(),
            event_order: 0,
            queue: VecDeque::new(),
            queue_room,
            held_back: VecDeque::new(),
            overflows: 0,
            buffers: vec![vec![0; limits::RECV_BUFFER_BYTES]; buffers],
            lent: vec![false; buffers],
            free: (0..buffers as u16).collect(),
            returned: Vec::new(),
            in_kernel: 0,
            taken_bytes: 0,
            fetches: 0,
            turns: 0,
            log: Log::new(view.records()),
            spools: Vec::new(),
            rng,
        }
    }

    fn now(&self) -> u64 {
        self.time_ns.load(Ordering::Relaxed)
    }

    fn advance(&self, to_ns: u64) {
        self.time_ns.fetch_max(to_ns, Ordering::Relaxed);
    }

    fn chance(&mut self, of_1000: u32) -> bool {
        of_1000 > 0 && self.rng.random_range(0..1000) < of_1000
    }

    /// A delay that is mostly short and sometimes long.
    fn delay(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random_range(0..3_000_000),
            1..8 => 0,
            _ => self.rng.random_range(0..50_000),
        }
    }

    fn later(&mut self, conn: ConnId, delay_ns: u64, event: Event) {
        let epoch = self.socks[conn.index()].epoch;
        self.event_order += 1;
        self.events.insert((self.now() + delay_ns, self.event_order), (conn, epoch, event));
    }

    fn complete(&mut self, completion: Completion) {
        if self.queue.len() >= self.queue_room {
            self.overflows += u64::from(self.held_back.is_empty());
            self.held_back.push_back(completion);
        } else {
            self.queue.push_back(completion);
        }
    }

    fn tell(&mut self, op: Op, conn: ConnId, generation: u16, result: i32, more: bool) {
        let (notification, buffer) = (false, None);
        self.complete(Completion { op, conn, generation, result, more, notification, buffer });
    }

    /// Makes happen what is due.
    fn happen(&mut self) {
        loop {
            let now = self.now();
            if let Some((at, how)) = self.halt
                && at <= now
            {
                self.control.halt(how);
                self.halt = None;
            }
            match self.events.first_key_value() {
                Some((&(at, _), _)) if at <= now => {}
                _ => return,
            }
            let Some((_, (conn, epoch, event))) = self.events.pop_first() else { return };
            if self.socks[conn.index()].epoch == epoch {
                self.event(conn, event);
            }
        }
    }

    fn event(&mut self, conn: ConnId, event: Event) {
        match event {
            Event::Connected(result) => {
                let sock = &mut self.socks[conn.index()];
                let Some(generation) = sock.connecting.take() else { return };
                sock.connected = result == 0;
                self.tell(Op::Connect, conn, generation, result, false);
            }
            Event::Taken => self.taken(conn),
            Event::Notified(result) => {
                let Some(sending) = self.socks[conn.index()].sending.take() else { return };
                let (op, generation) = (Op::Send, sending.generation);
                let (more, notification, buffer) = (false, true, None);
                self.complete(Completion { op, conn, generation, result, more, notification, buffer });
            }
            Event::Arrives(part) => {
                self.socks[conn.index()].inbox.push_back(part);
                self.pump(conn);
            }
            Event::Fetched(result) => {
                let Some(generation) = self.socks[conn.index()].fetching.take() else { return };
                self.tell(Op::Fetch, conn, generation, result, false);
            }
            Event::Cancelled => {
                let sock = &mut self.socks[conn.index()];
                sock.cancels -= 1;
                let generation = sock.cancels_of();
                self.tell(Op::Cancel, conn, generation, 0, false);
            }
        }
    }

    /// The kernel takes bytes of a send, or refuses.
    fn taken(&mut self, conn: ConnId) {
        let sock = &mut self.socks[conn.index()];
        let Some(sending) = &mut sock.sending else { return };
        if sending.told {
            return;
        }
        let (generation, zero, len) = (sending.generation, sending.zero, sending.bytes.len());
        let gone = sock.shut || sock.peer.reset;
        if gone || (zero && self.chance(self.faults.no_memory)) {
            let result = if gone { -libc::EPIPE } else { -libc::ENOMEM };
            // A zero-copy send may fail with a notification still to come.
            let notified = zero && self.rng.random_bool(0.3);
            return self.end_send(conn, generation, result, notified);
        }
        let n = if self.chance(self.faults.short_send) { self.rng.random_range(1..=len) } else { len };
        let Some(sending) = &mut self.socks[conn.index()].sending else { return };
        let bytes: Vec<u8> = sending.bytes[..n].to_vec();
        self.taken_bytes += n as u64;
        self.end_send(conn, generation, n as i32, zero);
        self.serve(conn, &bytes);
    }

    fn end_send(&mut self, conn: ConnId, generation: u16, result: i32, notified: bool) {
        self.tell(Op::Send, conn, generation, result, notified);
        if !notified {
            self.socks[conn.index()].sending = None;
            return;
        }
        if let Some(sending) = &mut self.socks[conn.index()].sending {
            sending.told = true;
        }
        if !self.chance(self.faults.unacknowledged) {
            let copied = if self.chance(self.faults.copied) { ZC_COPIED } else { 0 };
            let delay = self.delay();
            self.later(conn, delay, Event::Notified(copied));
        }
    }

    /// Hands what came to an armed receive.
    fn pump(&mut self, conn: ConnId) {
        while let Some(generation) = self.socks[conn.index()].receive {
            let sock = &mut self.socks[conn.index()];
            let (op, notification) = (Op::Recv, false);
            match sock.inbox.front_mut() {
                None if sock.shut => {
                    sock.receive = None;
                    self.tell(op, conn, generation, 0, false);
                }
                None => return,
                Some(Part::Fin { tag }) => {
                    sock.receive = None;
                    let tag = tag.take();
                    self.log.read(tag);
                    self.tell(op, conn, generation, 0, false);
                }
                Some(Part::Reset) => {
                    sock.receive = None;
                    sock.inbox.clear();
                    sock.inbox.push_back(Part::Fin { tag: None });
                    self.tell(op, conn, generation, -libc::ECONNRESET, false);
                }
                Some(Part::Bytes { .. }) => {
                    let Some(buffer) = self.free.pop() else {
                        sock.receive = None;
                        self.tell(op, conn, generation, -libc::ENOBUFS, false);
                        return;
                    };
                    let n = self.fill(conn, buffer);
                    let more = !self.chance(self.faults.ends);
                    if !more {
                        self.socks[conn.index()].receive = None;
                    }
                    let (result, buffer) = (n as i32, Some(BufferId::of_simulation(buffer)));
                    self.complete(Completion { op, conn, generation, result, more, notification, buffer });
                }
            }
        }
    }

    /// Copies the next bytes of a slot's inbox into a buffer.
    fn fill(&mut self, conn: ConnId, buffer: u16) -> usize {
        let split = self.chance(self.faults.split);
        let sock = &mut self.socks[conn.index()];
        let Some(Part::Bytes { bytes, at, tag }) = sock.inbox.front_mut() else { unreachable!("bytes are in front") };
        let most = (bytes.len() - *at).min(limits::RECV_BUFFER_BYTES);
        let n = if split { self.rng.random_range(1..=most) } else { most };
        self.buffers[buffer as usize][..n].copy_from_slice(&bytes[*at..*at + n]);
        self.lent[buffer as usize] = true;
        *at += n;
        if *at == bytes.len() {
            let tag = tag.take();
            sock.inbox.pop_front();
            self.log.read(tag);
        }
        n
    }

    fn start_send(&mut self, conn: ConnId, generation: u16, bytes: Vec<u8>, zero: bool) {
        let sock = &mut self.socks[conn.index()];
        assert!(sock.open && sock.connected, "a send on a socket that is not open");
        assert!(sock.sending.is_none() && sock.fetching.is_none() && !bytes.is_empty());
        sock.sending = Some(Sending { generation, bytes, zero, told: false });
        self.in_kernel += 1;
        let delay = self.delay();
        self.later(conn, delay, Event::Taken);
    }

    fn bytes_of(&self, spans: &[Span], skip: u64, out: &mut Vec<u8>) {
        let mut skip = skip;
        for span in spans {
            if skip >= span.bytes {
                skip -= span.bytes;
                continue;
            }
            let range = span.offset + skip..span.end();
            skip = 0;
            self.map.read(range, |bytes| out.extend_from_slice(bytes)).expect("the map is whole");
        }
    }

    fn assert_area_is_free(&self, conn: ConnId) {
        assert!(self.socks[conn.index()].sending.is_none(), "the send area is in the kernel");
    }
}

impl Sock {
    /// The generation that a cancel of this socket carries: the slot's own at that time, which only the caller knows.
    fn cancels_of(&self) -> u16 {
        self.peer.generation
    }
}

impl Io for SimRing<'_> {
    fn connect(&mut self, conn: ConnId, generation: u16, _address: usize) -> io::Result<()> {
        if self.chance(self.faults.no_port) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        self.epochs += 1;
        let sock = &mut self.socks[conn.index()];
        assert!(!sock.open && !sock.in_kernel(), "a slot is closed before it connects again");
        *sock = Sock { open: true, epoch: self.epochs, connecting: Some(generation), ..Sock::default() };
        sock.peer.generation = generation;
        self.in_kernel += 1;
        if !self.chance(self.faults.connect_hangs) {
            let result = if self.chance(self.faults.refused) { -libc::ECONNREFUSED } else { 0 };
            let delay = self.delay();
            self.later(conn, delay, Event::Connected(result));
        }
        Ok(())
    }

    fn head_mut(&mut self, conn: ConnId) -> &mut [u8] {
        self.assert_area_is_free(conn);
        &mut self.areas[conn.index()]
    }

    fn append_body(&mut self, conn: ConnId, head: usize, spans: &[Span]) -> Result<usize, SendRefused> {
        self.assert_area_is_free(conn);
        let mut body = Vec::new();
        self.bytes_of(spans, 0, &mut body);
        let area = &mut self.areas[conn.index()];
        let to = area.get_mut(head..head + body.len()).ok_or(SendRefused::TooLong)?;
        to.copy_from_slice(&body);
        Ok(head + body.len())
    }

    fn send_area(&mut self, conn: ConnId, generation: u16, from: usize, to: usize) {
        self.assert_area_is_free(conn);
        let bytes = self.areas[conn.index()][from..to].to_vec();
        self.start_send(conn, generation, bytes, false);
    }

    fn send_vector(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
        copying: Copying,
    ) -> Result<u64, SendRefused> {
        self.assert_area_is_free(conn);
        let mut bytes = self.areas[conn.index()][head.0..head.1].to_vec();
        let before = bytes.len();
        self.bytes_of(spans, skip, &mut bytes);
        let asked = (bytes.len() - before) as u64;
        self.start_send(conn, generation, bytes, copying == Copying::Zero);
        Ok(asked)
    }

    fn send_file(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
    ) -> Result<(), SendRefused> {
        self.send_vector(conn, generation, head, spans, skip, Copying::Copy).map(drop)
    }

    fn cold(&mut self, spans: &[Span]) -> Option<Range<u64>> {
        if self.chance(self.faults.cold) {
            let span = spans[self.rng.random_range(0..spans.len())];
            return Some(span.offset..span.end());
        }
        None
    }

    fn fetch(&mut self, conn: ConnId, generation: u16, range: &Range<u64>) {
        let sock = &mut self.socks[conn.index()];
        assert!(sock.open && sock.connected && sock.fetching.is_none(), "one fetch at a time, for an open socket");
        assert!(sock.sending.is_none() && range.start < range.end && range.end <= self.map.len());
        sock.fetching = Some(generation);
        self.in_kernel += 1;
        self.fetches += 1;
        let result = if self.chance(self.faults.no_memory) { -libc::EAGAIN } else { 0 };
        let delay = self.delay();
        self.later(conn, delay, Event::Fetched(result));
    }

    fn fetched(&mut self, range: Range<u64>) {
        assert!(range.start < range.end && range.end <= self.map.len());
    }

    fn recv(&mut self, conn: ConnId, generation: u16) {
        let sock = &mut self.socks[conn.index()];
        assert!(sock.open && sock.connected && sock.receive.is_none(), "one receive at a time, on an open socket");
        sock.receive = Some(generation);
        self.in_kernel += 1;
        self.pump(conn);
    }

    fn shutdown(&mut self, conn: ConnId) {
        let sock = &mut self.socks[conn.index()];
        if sock.connected {
            sock.shut = true;
            self.pump(conn);
        }
    }

    fn say_last(&mut self, _conn: ConnId, _bytes: &[u8]) {
        unreachable!("there is no TLS on a simulated ring")
    }

    fn cancel(&mut self, conn: ConnId, generation: u16, op: Op) {
        let sock = &mut self.socks[conn.index()];
        assert!(sock.open, "a cancel on a socket that is not open");
        sock.cancels += 1;
        sock.peer.generation = generation;
        self.in_kernel += 1;
        let connecting = if op == Op::Connect { sock.connecting.take() } else { None };
        let untold = op == Op::Send && sock.sending.as_ref().is_some_and(|s| !s.told);
        let sending = if untold { sock.sending.take() } else { None };
        let delay = self.delay();
        self.later(conn, delay, Event::Cancelled);
        let ended = [(Op::Connect, connecting), (Op::Send, sending.map(|s| s.generation))];
        for (op, generation) in ended.into_iter().filter_map(|(op, g)| Some((op, g?))) {
            self.tell(op, conn, generation, -libc::ECANCELED, false);
        }
    }

    fn abort(&mut self, conn: ConnId) {
        let sock = &mut self.socks[conn.index()];
        assert!(sock.receive.is_none() && sock.connecting.is_none(), "aborted with a receive in the kernel");
        if sock.sending.as_ref().is_some_and(|s| s.told) {
            let delay = self.delay();
            self.later(conn, delay, Event::Notified(0));
        }
    }

    fn close(&mut self, conn: ConnId) {
        let sock = &mut self.socks[conn.index()];
        assert!(!sock.in_kernel(), "closed with something in the kernel");
        sock.open = false;
        // Events of this socket are for nobody any more.
        sock.epoch = 0;
    }

    fn submit_and_wait(&mut self, timeout_ns: u64) -> Result<()> {
        self.turns += 1;
        assert!(
            self.turns < TURNS_MAX,
            "the worker neither moves on nor ends: {} in the kernel, {:?}",
            self.in_kernel,
            self.socks
        );
        while let Some(completion) = self.held_back.pop_front() {
            self.queue.push_back(completion);
        }
        let step = self.rng.random_range(100..3_000);
        self.advance(self.now() + step);
        self.happen();
        if self.queue.is_empty() && timeout_ns > 0 {
            let until = self.now().saturating_add(timeout_ns);
            while self.queue.is_empty() {
                let next = self.events.first_key_value().map_or(u64::MAX, |(&(at, _), _)| at);
                if next > until {
                    self.advance(until);
                    self.happen();
                    break;
                }
                self.advance(next);
                self.happen();
            }
        }
        Ok(())
    }

    fn has_completions(&mut self) -> bool {
        self.advance(self.now() + 200);
        self.happen();
        !self.queue.is_empty() || !self.held_back.is_empty()
    }

    fn completions(&mut self, out: &mut [Completion]) -> usize {
        let n = out.len().min(self.queue.len());
        for slot in &mut out[..n] {
            if let Some(completion) = self.queue.pop_front() {
                if !completion.more {
                    assert!(self.in_kernel > 0, "a final completion without an operation");
                    self.in_kernel -= 1;
                }
                *slot = completion;
            }
        }
        n
    }

    fn received(&self, buffer: BufferId, bytes: usize) -> &[u8] {
        assert!(self.lent[buffer.number() as usize], "a buffer is read that is not lent");
        &self.buffers[buffer.number() as usize][..bytes]
    }

    fn give_back(&mut self, buffer: BufferId) {
        let n = buffer.number();
        assert!(std::mem::replace(&mut self.lent[n as usize], false), "a buffer is given back that is not lent");
        self.buffers[n as usize].fill(b'?');
        self.returned.push(n);
    }

    fn publish(&mut self) {
        self.free.append(&mut self.returned);
    }

    fn in_kernel(&self) -> u64 {
        self.in_kernel
    }

    fn zero_copy(&self) -> bool {
        true
    }

    fn pressure(&self) -> (u64, u64) {
        (0, self.overflows)
    }

    fn append(&mut self, spool: usize, bytes: &[u8]) {
        if self.spools.len() <= spool {
            self.spools.resize(spool + 1, Vec::new());
        }
        self.spools[spool].extend_from_slice(bytes);
    }

    fn flush_spools(&mut self, _: usize) {}

    fn writing(&self) -> bool {
        false
    }

    fn close_spools(&mut self, spools: usize) -> (Vec<Option<String>>, u64) {
        (vec![None; spools], 0)
    }
}
