//! One worker's io_uring, its sockets, and all memory that the kernel is given.
//!
//! Promises: what is lent to the kernel (heads, vectors, receive buffers, addresses, the body map) belongs to the [`Ring`] and
//! is freed only when nothing is in the kernel any more; if that cannot be reached, it is leaked. Callers name connections by
//! id and bodies by span, and every span is checked against the map. No operation is linked, none skips its completion.
//!
//! A connection's send area (head bytes, vector, message header) must not change while a send of it is in the kernel: the
//! ring keeps count and refuses.

use std::{
    fs::File,
    io,
    mem::ManuallyDrop,
    net::{IpAddr, SocketAddr},
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use io_uring::{
    IoUring, Probe, cqueue, opcode, squeue,
    types::{self, BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec},
};
use memmap2::MmapMut;

use super::{
    limit,
    mem::Map,
    resident::Resident,
    sendfile, sock,
    spool::{BlockWrite, Spools},
};
use crate::data::{
    ConnId, Error, Result, Span,
    limits::{self, CHUNK_BYTES},
    net::SocketOptions,
    plan::Address,
};

/// The operations that a worker asks for; the tag of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Open the connection.
    Connect = 1,
    /// Send request bytes.
    Send = 2,
    /// Receive, many times where the kernel can.
    Recv = 3,
    /// Cancel what a connection has in the kernel.
    Cancel = 4,
    /// Write a block of a spool; the ring deals with its completion itself.
    Write = 5,
    /// Bring a part of the body map into memory.
    Fetch = 7,
}

/// In a completion's name: a wait for room in the socket. It is told as a send's completion.
const WRITABLE: u8 = 6;

/// One completion, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What completed.
    pub op: Op,
    /// On which connection slot.
    pub conn: ConnId,
    /// In which use of the slot.
    pub generation: u16,
    /// Bytes, 0, or a negative errno.
    pub result: i32,
    /// More completions of the same operation follow.
    pub more: bool,
    /// A zero-copy send's notification: its memory is free again. `result` then has [`ZC_COPIED`] when the kernel copied.
    pub notification: bool,
    /// The receive buffer that holds the bytes; it must be given back.
    pub buffer: Option<BufferId>,
}

/// In a notification's result: the kernel copied the bytes all the same.
pub const ZC_COPIED: i32 = i32::MIN;

/// A lent receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u16);

#[cfg(test)]
impl BufferId {
    /// A buffer of a simulated ring.
    pub const fn of_simulation(id: u16) -> Self {
        Self(id)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// How a vectored send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// The kernel copies into its socket buffers.
    Copy,
    /// Zero copy, with a notification.
    Zero,
}

/// What a ring is made for.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// Connection slots.
    pub connections: u32,
    /// Bytes of a slot's send area: the largest head, and room for small bodies behind it.
    pub head_bytes: usize,
    /// Most spans of one body in one send.
    pub spans: usize,
    /// Receive buffers of [`limits::RECV_BUFFER_BYTES`] each.
    pub recv_buffers: u32,
    /// Every address that may be connected to.
    pub addresses: Vec<Address>,
    /// Source addresses; slot `s` has the one at `s % len` of its target's family. Empty leaves them to the kernel.
    pub sources: Vec<IpAddr>,
    /// What every socket is set to.
    pub options: SocketOptions,
}

/// Packs a completion's name: op 8 bits, generation 16, connection 24. One place for packing and unpacking.
const fn pack(op: Op, conn: ConnId, generation: u16) -> u64 {
    pack_tag(op as u8, conn, generation)
}

const fn pack_tag(tag: u8, conn: ConnId, generation: u16) -> u64 {
    ((tag as u64) << 56) | ((generation as u64) << 24) | (conn.0 as u64 & 0xff_ffff)
}

fn unpack(user_data: u64) -> Option<(Op, ConnId, u16)> {
    let op = match user_data >> 56 {
        1 => Op::Connect,
        2 | 6 => Op::Send,
        3 => Op::Recv,
        4 => Op::Cancel,
        5 => Op::Write,
        7 => Op::Fetch,
        _ => return None,
    };
    Some((op, ConnId((user_data & 0xff_ffff) as u32), (user_data >> 24) as u16))
}

/// The provided receive buffers: a ring of entries shared with the kernel, and their memory.
struct RecvBuffers {
    entries: MmapMut,
    memory: MmapMut,
    mask: u16,
    tail: u16,
    /// Which buffers are lent out to the caller.
    lent: Box<[bool]>,
}

/// Everything that the kernel may hold a pointer to.
struct KernelMemory {
    /// Send areas, `head_bytes` each.
    heads: MmapMut,
    /// Vectors, `spans + 1` a slot.
    vectors: Box<[libc::iovec]>,
    /// One message header a slot.
    messages: Box<[libc::msghdr]>,
    /// Addresses.
    addresses: Box<[sock::KernelAddress]>,
    /// Receive buffers.
    recv: RecvBuffers,
    /// Bodies, and what of them is in memory.
    map: Arc<Map>,
    resident: Arc<Resident>,
    /// Blocks of spools.
    spools: Spools,
}

/// One worker's ring.
pub struct Ring {
    uring: ManuallyDrop<IoUring>,
    memory: ManuallyDrop<KernelMemory>,
    fds: Box<[Option<OwnedFd>]>,
    /// Source addresses, by family.
    sources_v4: Box<[sock::KernelAddress]>,
    sources_v6: Box<[sock::KernelAddress]>,
    options: SocketOptions,
    /// Sends in the kernel, by slot.
    sending: Box<[u8]>,
    /// What `sendfile` sent on the calling thread: completions that the kernel has no part in.
    done: Vec<Completion>,
    /// Bytes that a slot's `sendfile` sent before the socket was full.
    partly: Box<[i32]>,
    head_bytes: usize,
    spans: usize,
    in_kernel: u64,
    multishot: bool,
    zero_copy: bool,
    sq_full: u64,
    cq_overflow: u64,
    notes: Vec<String>,
}

const RECV_GROUP: u16 = 0;

impl Ring {
    /// Makes the ring for the calling thread, which must be the one that uses it. `spools` are empty files that are appended
    /// to through it, by their index.
    ///
    /// Errors: [`Error::Environment`] with the cure where the kernel or a limit refuses.
    pub fn new(config: &RingConfig, resident: Arc<Resident>, spools: Vec<File>) -> Result<Self> {
        let connections = config.connections.clamp(1, limits::CONNECTIONS_PER_WORKER_MAX);
        let (uring, mut notes) = set_up(connections)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(|e| refused("io_uring_register(PROBE)", &e))?;
        let zero_copy = probe.is_supported(opcode::SendMsgZc::CODE);
        // Multishot receive came with the same kernel (6.0) as the zero-copy send, and has no probe of its own.
        let multishot = probe.is_supported(opcode::SendZc::CODE);
        if !multishot {
            notes.push(
                "kernel before 6.0: no multishot receive and no zero-copy send; one receive a read instead".into(),
            );
        }
        let recv = RecvBuffers::new(config.recv_buffers)?;
        let slots = connections as usize;
        let memory = KernelMemory {
            heads: anonymous(slots * config.head_bytes.max(1))?,
            vectors: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; slots * (config.spans + 1)].into(),
            messages: vec![EMPTY_MESSAGE; slots].into(),
            addresses: config.addresses.iter().map(sock::kernel_address).collect::<Result<Vec<_>>>()?.into(),
            recv,
            map: resident.map().clone(),
            resident,
            spools: Spools::new(spools).map_err(|e| refused("mmap", &e))?,
        };
        let mut ring = Self {
            uring: ManuallyDrop::new(uring),
            memory: ManuallyDrop::new(memory),
            fds: (0..slots).map(|_| None).collect(),
            sources_v4: sources(&config.sources, IpAddr::is_ipv4),
            sources_v6: sources(&config.sources, IpAddr::is_ipv6),
            options: config.options,
            sending: vec![0; slots].into(),
            done: Vec::with_capacity(slots),
            partly: vec![0; slots].into(),
            head_bytes: config.head_bytes.max(1),
            spans: config.spans,
            in_kernel: 0,
            multishot,
            zero_copy,
            sq_full: 0,
            cq_overflow: 0,
            notes,
        };
        ring.register_recv_buffers()?;
        ring.register_busy_poll();
        // The first is for files, and stays as it is; the other is for the rest, which here are fetches alone. A kernel that
        // does not know the call makes as many threads as it likes.
        let _ = ring.uring.submitter().register_iowq_max_workers(&mut [0, limits::FETCHES_AT_ONCE]);
        Ok(ring)
    }

    fn register_recv_buffers(&mut self) -> Result<()> {
        let recv = &mut self.memory.recv;
        for id in 0..=recv.mask {
            recv.put(id);
        }
        recv.publish();
        let entries = recv.mask + 1;
        let address = recv.entries.as_ptr() as u64;
        // SAFETY: the entries are page-aligned, zero-initialised, `entries` long, and live until the ring is closed (Drop).
        unsafe { self.uring.submitter().register_buf_ring_with_flags(address, entries, RECV_GROUP, 0) }
            .map_err(|e| refused("io_uring_register(PBUF_RING)", &e))
    }

    /// Lets the ring poll the network device's queues before it sleeps (`--busy-poll`).
    fn register_busy_poll(&mut self) {
        let Some(micros) = self.options.busy_poll_us else { return };
        let mut napi = types::Napi::new().set_busy_poll_timeout(micros).set_prefer_busy_poll(true);
        if let Err(error) = self.uring.submitter().register_napi(&mut napi) {
            self.notes
                .push(format!("--busy-poll: the ring cannot poll ({error}): the sockets alone do, since 6.9 it can"));
        }
    }

    /// What the kernel lacks, in words, for the report.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// True when zero-copy sends can be asked for.
    pub const fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Operations in the kernel: submitted (or queued to be) minus final completions.
    pub const fn in_kernel(&self) -> u64 {
        self.in_kernel
    }

    /// Times that the submission queue was full, and completion overflows seen.
    pub const fn pressure(&self) -> (u64, u64) {
        (self.sq_full, self.cq_overflow)
    }

    /// Opens a socket for a slot and begins to connect it to the address of that index.
    ///
    /// Errors: what `socket(2)` or `setsockopt(2)` said (file limit).
    pub fn connect(&mut self, conn: ConnId, generation: u16, address: usize) -> io::Result<()> {
        let to = self.memory.addresses.get(address).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let sources = if to.is_ipv4() {
            &self.sources_v4[..]
        } else if to.is_ipv6() {
            &self.sources_v6[..]
        } else {
            &[]
        };
        let source = if sources.is_empty() { None } else { Some(&sources[conn.index() % sources.len()]) };
        let fd = sock::open(to, source, &self.options)?;
        let entry = opcode::Connect::new(Fd(fd.as_raw_fd()), to.as_ptr().cast(), to.len()).build();
        assert!(self.fds[conn.index()].is_none(), "a slot is closed before it connects again");
        self.fds[conn.index()] = Some(fd);
        // SAFETY: the address lives in `memory`, which outlives the operation (Drop).
        unsafe { self.push(entry, pack(Op::Connect, conn, generation)) };
        Ok(())
    }

    /// The send area of a slot, to write a head into. No send of the slot may be in the kernel.
    #[inline]
    pub fn head_mut(&mut self, conn: ConnId) -> &mut [u8] {
        assert!(self.sending[conn.index()] == 0, "the send area is in the kernel");
        let at = conn.index() * self.head_bytes;
        &mut self.memory.heads[at..at + self.head_bytes]
    }

    /// Copies a body behind a head of `head` bytes in the send area. Returns the whole length.
    ///
    /// Errors: none fits (then nothing is sent), or the map changed under the run.
    #[inline]
    pub fn append_body(&mut self, conn: ConnId, head: usize, spans: &[Span]) -> Result<usize, SendRefused> {
        assert!(self.sending[conn.index()] == 0, "the send area is in the kernel");
        let base = conn.index() * self.head_bytes;
        let memory = &mut *self.memory;
        let area = memory.heads.get_mut(base..base + self.head_bytes).ok_or(SendRefused::TooLong)?;
        let mut at = head;
        for span in spans {
            let end = at + span.bytes as usize;
            let to = area.get_mut(at..end).ok_or(SendRefused::TooLong)?;
            memory.map.copy_to(span.offset, to).map_err(|_| SendRefused::Changed)?;
            at = end;
        }
        Ok(at)
    }

    /// Sends bytes `from..to` of the slot's send area.
    #[inline]
    pub fn send_area(&mut self, conn: ConnId, generation: u16, from: usize, to: usize) {
        assert!(from <= to && to <= self.head_bytes && self.sending[conn.index()] == 0);
        let Some(fd) = self.fd(conn) else { return };
        let start = conn.index() * self.head_bytes + from;
        let bytes = &self.memory.heads[start..start + (to - from)];
        let entry = opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(SEND_FLAGS as i32).build();
        self.sending[conn.index()] += 1;
        // SAFETY: the bytes lie in `memory`, are not written while `sending` is set, and outlive the operation (Drop).
        unsafe { self.push(entry, pack(Op::Send, conn, generation)) };
    }

    /// Sends bytes `from..to` of the send area, then the spans after their first `skip` bytes, as far as one send carries.
    /// Returns how many body bytes the send asks for.
    ///
    /// Errors: a span outside the map.
    pub fn send_vector(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
        copying: Copying,
    ) -> Result<u64, SendRefused> {
        let slot = conn.index();
        assert!(head.0 <= head.1 && head.1 <= self.head_bytes && self.sending[slot] == 0);
        let Some(fd) = self.fd(conn) else { return Ok(0) };
        let width = self.spans + 1;
        let memory = &mut *self.memory;
        let vector = &mut memory.vectors[slot * width..(slot + 1) * width];
        let mut used = 0;
        if head.0 < head.1 {
            let area = &mut memory.heads[slot * self.head_bytes..(slot + 1) * self.head_bytes];
            let bytes = &mut area[head.0..head.1];
            vector[0] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            used = 1;
        }
        let asked = fill_vector(&mut vector[used..], &mut used, &memory.map, spans, skip)?;
        let message = &mut memory.messages[slot];
        *message = EMPTY_MESSAGE;
        message.msg_iov = vector.as_mut_ptr();
        message.msg_iovlen = used;
        let message: *const libc::msghdr = message;
        let entry = match copying {
            Copying::Copy => opcode::SendMsg::new(fd, message).flags(SEND_FLAGS).build(),
            Copying::Zero => opcode::SendMsgZc::new(fd, message).flags(SEND_FLAGS).ioprio(REPORT_USAGE).build(),
        };
        self.sending[slot] += 1;
        // SAFETY: message, vector and head lie in `memory`, the spans in the map that `memory` holds; none is written while
        // `sending` is set, and all outlive the operation (Drop).
        unsafe { self.push(entry, pack(Op::Send, conn, generation)) };
        Ok(asked)
    }

    /// Sends bytes `from..to` of the send area, then the spans after their first `skip` bytes, from the file below the map and
    /// without copying: at once what the socket takes, told by a completion like any send's. The spans should be resident.
    ///
    /// Errors: a span outside the map, or a map without a file.
    pub fn send_file(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
    ) -> Result<(), SendRefused> {
        let slot = conn.index();
        assert!(head.0 <= head.1 && head.1 <= self.head_bytes && self.sending[slot] == 0);
        let Some(socket) = self.fds[slot].as_ref() else { return Ok(()) };
        let memory = &*self.memory;
        let file = memory.map.file_below().ok_or(SendRefused::Changed)?;
        if spans.iter().any(|span| span.end() > memory.map.len()) {
            return Err(SendRefused::Changed);
        }
        let area = &memory.heads[slot * self.head_bytes..(slot + 1) * self.head_bytes];
        let sent = sendfile::send_file(socket.as_fd(), &area[head.0..head.1], file, spans, skip);
        let result = match sent {
            Ok(sent) if sent.blocked => {
                self.partly[slot] = sent.bytes as i32;
                let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLOUT as u32).build();
                self.sending[slot] += 1;
                // SAFETY: the operation names a descriptor and no memory.
                unsafe { self.push(entry, pack_tag(WRITABLE, conn, generation)) };
                return Ok(());
            }
            Ok(sent) => sent.bytes as i32,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(SendRefused::Changed),
            Err(e) => -e.raw_os_error().unwrap_or(libc::EIO),
        };
        self.sending[slot] += 1;
        self.in_kernel += 1;
        let (op, more, notification, buffer) = (Op::Send, false, false, None);
        self.done.push(Completion { op, conn, generation, result, more, notification, buffer });
        Ok(())
    }

    /// The first stretch of spans that has to be read from the disk; none when all of them can be sent without waiting.
    #[inline]
    pub fn cold(&self, spans: &[Span]) -> Option<Range<u64>> {
        self.memory.resident.cold(spans)
    }

    /// Brings a stretch of the body map into memory, on a thread of the kernel's: its completion has 0 for a result, or EFAULT
    /// where the file has no such bytes any more. What is outside the map is not asked for.
    pub fn fetch(&mut self, conn: ConnId, generation: u16, range: &Range<u64>) {
        let map = &self.memory.map;
        let end = range.end.min(map.len());
        let start = range.start.min(end) / CHUNK_BYTES * CHUNK_BYTES;
        // SAFETY: `start` is at most the map's length, so the pointer stays within one allocation.
        let address = unsafe { map.as_ptr().add(start as usize) };
        let length = (end - start) as libc::off_t;
        let entry = opcode::Madvise::new(address.cast(), length, libc::MADV_POPULATE_READ).build();
        // SAFETY: the operation reads pages in and changes none; the map lives in `memory`, which outlives it (Drop).
        unsafe { self.push(entry, pack(Op::Fetch, conn, generation)) };
    }

    /// A stretch was brought in by [`Ring::fetch`].
    pub fn fetched(&self, range: Range<u64>) {
        self.memory.resident.mark(range);
    }

    /// Arms the receive of a slot.
    #[inline]
    pub fn recv(&mut self, conn: ConnId, generation: u16) {
        let Some(fd) = self.fd(conn) else { return };
        let entry = if self.multishot {
            opcode::RecvMulti::new(fd, RECV_GROUP).build()
        } else {
            opcode::Recv::new(fd, ptr::null_mut(), limits::RECV_BUFFER_BYTES as u32)
                .buf_group(RECV_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        // SAFETY: the kernel writes only into provided buffers, which lie in `memory` and outlive the operation (Drop).
        unsafe { self.push(entry, pack(Op::Recv, conn, generation)) };
    }

    /// Ends both directions of a slot's socket: the peer sees a FIN, and what is armed completes.
    pub fn shutdown(&mut self, conn: ConnId) {
        if let Some(fd) = &self.fds[conn.index()] {
            sock::shutdown(fd);
        }
    }

    /// Hands the kernel the last few bytes of a slot's connection before its shutdown, without waiting. No send of the slot may
    /// be in the kernel.
    pub fn say_last(&mut self, conn: ConnId, bytes: &[u8]) {
        assert!(self.sending[conn.index()] == 0, "bytes of two sends would interleave");
        if let Some(fd) = &self.fds[conn.index()] {
            sock::say_last(fd, bytes);
        }
    }

    /// Cancels a slot's connect or send. By name: the kernel finds it at once, where by descriptor it looks through everything
    /// that the ring has in flight (10,000 connections closed at the end of a run took 0.6 s of CPU).
    pub fn cancel(&mut self, conn: ConnId, generation: u16, op: Op) {
        let entry = opcode::AsyncCancel::new(pack(op, conn, generation)).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(entry, pack(Op::Cancel, conn, generation)) };
    }

    /// Resets a slot's connection and drops what its peer does not acknowledge: the kernel lets go of a zero-copy send's memory
    /// then, which would last until TCP gives up, a quarter of an hour. The slot stays taken until its notification is there.
    pub fn abort(&mut self, conn: ConnId) {
        if let Some(fd) = self.fds[conn.index()].take() {
            sock::reset(fd);
        }
    }

    /// Closes a slot's socket. Nothing of the slot may be in the kernel: an armed receive would keep the connection alive.
    pub fn close(&mut self, conn: ConnId) {
        self.fds[conn.index()] = None;
    }

    /// Submits what is queued and waits until a completion is there or `timeout_ns` is over; 0 does not wait.
    ///
    /// Errors: only what no retry can cure (the ring itself is broken).
    pub fn submit_and_wait(&mut self, timeout_ns: u64) -> Result<()> {
        if !self.done.is_empty() {
            return self.submit_and_look();
        }
        let wait = if timeout_ns == 0 { 0 } else { 1 };
        let timespec = Timespec::new().sec(timeout_ns / 1_000_000_000).nsec((timeout_ns % 1_000_000_000) as u32);
        let args = SubmitArgs::new().timespec(&timespec);
        let done = if wait == 0 { self.uring.submit() } else { self.uring.submitter().submit_with_args(wait, &args) };
        match done {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // Time is over, a signal came, or the kernel wants its completions read first: the caller goes on and reads.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(refused("io_uring_enter", &e)),
            },
        }
    }

    /// Submits what is queued and lets the kernel post what is ready, without waiting.
    fn submit_and_look(&mut self) -> Result<()> {
        const GETEVENTS: u32 = 1;
        let queued = self.uring.submission().len() as u32;
        // SAFETY: no argument is passed; every queued entry was pushed under the contract of `push`.
        match unsafe { self.uring.submitter().enter::<()>(queued, 0, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(refused("io_uring_enter", &e)),
            },
        }
    }

    /// True when a completion can be read without entering the kernel, or the kernel has work that makes one.
    #[inline]
    pub fn has_completions(&mut self) -> bool {
        if !self.done.is_empty() || !self.uring.completion().is_empty() {
            return true;
        }
        let sq = self.uring.submission();
        sq.taskrun() || sq.cq_overflow()
    }

    /// Copies completions out, at most `out.len()`. Returns how many.
    #[inline]
    pub fn completions(&mut self, out: &mut [Completion]) -> usize {
        if self.uring.submission().cq_overflow() {
            self.cq_overflow += 1;
        }
        let mut left_over = None;
        let mut n = 0;
        while n < out.len()
            && let Some(completion) = self.done.pop()
        {
            self.in_kernel -= 1;
            let sending = &mut self.sending[completion.conn.index()];
            *sending = sending.saturating_sub(1);
            out[n] = completion;
            n += 1;
        }
        let mut queue = self.uring.completion();
        while n < out.len() {
            let Some(entry) = queue.next() else { break };
            let flags = entry.flags();
            let Some((op, conn, generation)) = unpack(entry.user_data()) else { continue };
            if op == Op::Write {
                self.in_kernel -= 1;
                left_over = left_over.or(self.memory.spools.written(conn.0, entry.result()));
                if left_over.is_some() {
                    break;
                }
                continue;
            }
            let more = cqueue::more(flags);
            let notification = cqueue::notif(flags);
            let buffer = cqueue::buffer_select(flags).map(BufferId);
            if let Some(BufferId(id)) = buffer
                && let Some(lent) = self.memory.recv.lent.get_mut(id as usize)
            {
                *lent = true;
            }
            if !more {
                self.in_kernel -= 1;
                if op == Op::Send
                    && let Some(sending) = self.sending.get_mut(conn.index())
                {
                    *sending = sending.saturating_sub(1);
                }
            }
            let mut result = entry.result();
            if entry.user_data() >> 56 == u64::from(WRITABLE) && result > 0 {
                // The bytes that went before the socket was full; a mask of poll events is no count.
                result = self.partly.get_mut(conn.index()).map_or(0, std::mem::take);
            }
            out[n] = Completion { op, conn, generation, result, more, notification, buffer };
            n += 1;
        }
        drop(queue);
        if let Some(write) = left_over {
            // A short write: what is behind it in the queue is read in the next call.
            self.write_block(write);
        }
        n
    }

    /// Adds bytes to a spool, at most [`spool::BLOCK_BYTES`](super::spool::BLOCK_BYTES) of them.
    #[inline]
    pub fn append(&mut self, spool: usize, bytes: &[u8]) {
        if let Some(write) = self.memory.spools.append(spool, bytes) {
            self.write_block(write);
        }
    }

    /// Hands over what the spools hold; they are whole when nothing is in the kernel any more.
    pub fn flush_spools(&mut self, spools: usize) {
        for spool in 0..spools {
            if let Some(write) = self.memory.spools.flush(spool) {
                self.write_block(write);
            }
        }
    }

    /// True while bytes of a spool are in the kernel.
    pub fn writing(&self) -> bool {
        self.memory.spools.writing()
    }

    /// Ends the spools. Returns what failed, by spool, and how many blocks the caller's thread
    /// had to write itself.
    pub fn close_spools(&mut self, spools: usize) -> (Vec<Option<String>>, u64) {
        let of = &mut self.memory.spools;
        of.close();
        ((0..spools).map(|s| of.failed(s).map(ToString::to_string)).collect(), of.waits())
    }

    #[cold]
    fn write_block(&mut self, write: BlockWrite) {
        let entry = opcode::Write::new(Fd(write.fd), write.bytes, write.length).offset(write.offset).build();
        // SAFETY: the block lies in `memory`, is not written while it is in the kernel, and outlives the operation (Drop).
        unsafe { self.push(entry, pack(Op::Write, ConnId(write.block), 0)) };
    }

    /// The bytes of a lent buffer; empty for one that is not lent.
    #[inline]
    pub fn received(&self, buffer: BufferId, bytes: usize) -> &[u8] {
        let recv = &self.memory.recv;
        if !recv.lent.get(buffer.0 as usize).copied().unwrap_or(false) {
            return &[];
        }
        let start = buffer.0 as usize * limits::RECV_BUFFER_BYTES;
        &recv.memory[start..start + bytes.min(limits::RECV_BUFFER_BYTES)]
    }

    /// Gives a buffer back; the kernel sees it after [`Ring::publish`].
    #[inline]
    pub fn give_back(&mut self, buffer: BufferId) {
        let recv = &mut self.memory.recv;
        if let Some(lent) = recv.lent.get_mut(buffer.0 as usize)
            && std::mem::replace(lent, false)
        {
            recv.put(buffer.0);
        }
    }

    /// Shows the kernel all buffers that were given back.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.recv.publish();
    }

    #[inline]
    fn fd(&self, conn: ConnId) -> Option<Fd> {
        self.fds[conn.index()].as_ref().map(|fd| Fd(fd.as_raw_fd()))
    }

    /// Queues an operation; a full queue is submitted first.
    ///
    /// # Safety
    ///
    /// All memory that the entry names must lie in `self.memory` and stay as it is until its final completion.
    #[inline]
    unsafe fn push(&mut self, entry: squeue::Entry, user_data: u64) {
        let entry = entry.user_data(user_data);
        self.in_kernel += 1;
        loop {
            // SAFETY: passed on from the caller.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.sq_full += 1;
            // EBUSY: completions overflow; they are kept by the kernel (NODROP), and submitting goes on once some are read.
            // The submission queue is as large as two operations a connection, so it empties here in all but that case.
            if self.uring.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_kernel > 0 {
            let _ = self.uring.submitter().register_sync_cancel(Some(Timespec::new().sec(1)), CancelBuilder::any());
            let mut batch = [EMPTY_COMPLETION; 64];
            // 100 rounds of at most 10 ms: what does not end in a second belongs to a peer that never acknowledges.
            for _ in 0..100 {
                let _ = self.submit_and_wait(10_000_000);
                while self.completions(&mut batch) > 0 {}
                if self.in_kernel == 0 {
                    break;
                }
            }
        }
        let clean = self.in_kernel == 0;
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
        if clean {
            // SAFETY: nothing is in the kernel and the ring is closed; dropped once. Else the memory is leaked on purpose.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

const EMPTY_COMPLETION: Completion = Completion {
    op: Op::Cancel,
    conn: ConnId(0),
    generation: 0,
    result: 0,
    more: false,
    notification: false,
    buffer: None,
};
const SEND_FLAGS: u32 = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
/// IORING_SEND_ZC_REPORT_USAGE: the notification says whether the bytes were copied.
const REPORT_USAGE: u16 = 1 << 3;
// SAFETY: an all-zero message header is valid: no name, no vector, no control.
const EMPTY_MESSAGE: libc::msghdr = unsafe { std::mem::zeroed() };

/// Why a send was not handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// The entry's files changed under the run.
    Changed,
    /// Longer than the send area.
    TooLong,
}

/// Fills a vector from spans after their first `skip` bytes, as far as it goes. Returns the bytes, and adds to `used`.
fn fill_vector(
    vector: &mut [libc::iovec],
    used: &mut usize,
    map: &Map,
    spans: &[Span],
    skip: u64,
) -> Result<u64, SendRefused> {
    let (mut skip, mut asked, mut filled) = (skip, 0u64, 0);
    for span in spans {
        if skip >= span.bytes {
            skip -= span.bytes;
            continue;
        }
        if filled == vector.len() || asked >= limits::SEND_BYTES_MAX {
            break;
        }
        if span.end() > map.len() {
            return Err(SendRefused::Changed);
        }
        let bytes = (span.bytes - skip).min(limits::SEND_BYTES_MAX - asked);
        let start = (span.offset + skip) as usize;
        // SAFETY: `start` lies inside the map (checked above), so the pointer stays within one allocation.
        let base = unsafe { map.as_ptr().add(start) };
        vector[filled] = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: bytes as usize };
        (skip, asked, filled) = (0, asked + bytes, filled + 1);
    }
    *used += filled;
    Ok(asked)
}

impl RecvBuffers {
    fn new(count: u32) -> Result<Self> {
        let count = count.clamp(16, limits::RECV_BUFFERS_MAX).next_power_of_two() as usize;
        Ok(Self {
            entries: anonymous(count * size_of::<BufRingEntry>())?,
            memory: anonymous(count * limits::RECV_BUFFER_BYTES)?,
            mask: (count - 1) as u16,
            tail: 0,
            lent: vec![false; count].into(),
        })
    }

    /// Writes one entry behind the tail; the kernel sees it with the next publish.
    #[inline]
    fn put(&mut self, id: u16) {
        let buffer = self.memory[id as usize * limits::RECV_BUFFER_BYTES..].as_ptr() as u64;
        let slot = (self.tail & self.mask) as usize;
        let entries: *mut BufRingEntry = self.entries.as_mut_ptr().cast();
        // SAFETY: `slot` is at most `mask`, and `entries` holds mask + 1 of them.
        let at = unsafe { entries.add(slot) };
        // SAFETY: in bounds and aligned (16 bytes in a page-aligned map); the kernel reads it only below the tail.
        let entry = unsafe { &mut *at };
        entry.set_addr(buffer);
        entry.set_len(limits::RECV_BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        // SAFETY: the first entry of a registered, page-aligned buffer ring.
        let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr().cast()) };
        // SAFETY: the tail is a u16 that the kernel reads with acquire; this thread alone writes it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

fn sources(all: &[IpAddr], of: impl Fn(&IpAddr) -> bool) -> Box<[sock::KernelAddress]> {
    all.iter().filter(|ip| of(ip)).map(|ip| SocketAddr::new(*ip, 0).into()).collect()
}

fn anonymous(bytes: usize) -> Result<MmapMut> {
    MmapMut::map_anon(bytes.max(1)).map_err(|e| Error::Environment {
        call: "mmap",
        what: format!("{bytes} bytes: {e}"),
        cure: "ask for fewer connections with -c, or raise the memory limit".into(),
    })
}

/// Makes the ring with every flag that helps, and drops them one by one where an older kernel refuses.
fn set_up(connections: u32) -> Result<(IoUring, Vec<String>)> {
    let mut sq = (2 * connections).next_power_of_two().clamp(64, limits::SQ_ENTRIES_MAX);
    let mut cq = (4 * connections).next_power_of_two().clamp(1024, limits::CQ_ENTRIES_MAX);
    let mut notes = Vec::new();
    // From all to none: no SQ array (6.6), deferred task work (6.1), single issuer (6.0), the task-run flag (5.19).
    let steps: [(&str, u8); 4] = [("", 3), ("NO_SQARRAY", 2), ("DEFER_TASKRUN", 1), ("SINGLE_ISSUER", 0)];
    let mut step = 0;
    loop {
        let level = steps[step].1;
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_submit_all().setup_cqsize(cq);
        if level >= 1 {
            builder.setup_single_issuer();
        }
        if level >= 2 {
            builder.setup_defer_taskrun().setup_taskrun_flag();
        } else {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if level >= 3 {
            builder.setup_no_sqarray();
        }
        match builder.build(sq) {
            Ok(uring) => {
                if step > 0 {
                    let lacks: Vec<_> = steps[1..=step].iter().map(|s| s.0).collect();
                    notes.push(format!("this kernel lacks io_uring {}: some throughput is lost", lacks.join(", ")));
                }
                return Ok((uring, notes));
            }
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && step + 1 < steps.len() => step += 1,
            // Locked memory is counted a user, over all processes: a smaller ring may still fit.
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && sq > 64 => {
                (sq, cq) = ((sq / 2).max(64), (cq / 2).max(1024));
                notes.push(format!("locked memory is short: the submission queue has {sq} entries"));
            }
            Err(e) => return Err(refused("io_uring_setup", &e)),
        }
    }
}

/// A kernel refusal by name, with its cure.
pub fn refused(call: &'static str, error: &io::Error) -> Error {
    let (what, cure) = match error.raw_os_error() {
        Some(libc::EPERM) => match limit::io_uring_disabled() {
            Some(n @ 1..) => (
                format!("EPERM: disabled by kernel.io_uring_disabled={n}"),
                "run `sysctl kernel.io_uring_disabled=0` as root; see \"ringload doctor\"".to_owned(),
            ),
            _ => (
                "EPERM: denied by a seccomp filter (containers deny io_uring by default)".to_owned(),
                "allow the io_uring_* calls in the seccomp profile (docker: --security-opt seccomp=unconfined); see \"ringload doctor\""
                    .to_owned(),
            ),
        },
        Some(libc::EACCES) => {
            ("EACCES: a security module denies io_uring".to_owned(), "allow it in its policy; see \"ringload doctor\"".to_owned())
        }
        Some(libc::ENOSYS) => (
            "ENOSYS: this kernel has no io_uring".to_owned(),
            "use a kernel of 5.19 or later with CONFIG_IO_URING; see \"ringload doctor\"".to_owned(),
        ),
        Some(libc::ENOMEM) => {
            let limit = limit::locked_memory().map_or("unlimited".to_owned(), |b| format!("{} KiB", b / 1024));
            (
                format!("ENOMEM: the locked-memory limit is {limit} for this user, over all its processes"),
                "raise it (ulimit -l unlimited, LimitMEMLOCK=), or use fewer workers with -t; see \"ringload doctor\"".to_owned(),
            )
        }
        Some(libc::EINVAL) => (
            format!("EINVAL on kernel {}", limit::kernel_release()),
            "use a kernel of 5.19 or later; see \"ringload doctor\"".to_owned(),
        ),
        _ => (error.to_string(), "see \"ringload doctor\"".to_owned()),
    };
    Error::Environment { call, what, cure }
}

/// What the kernel offers, for `ringload doctor`: each operation by name, and whether it is there.
///
/// Errors: as [`Ring::new`], when no ring can be made at all.
pub fn probe() -> Result<Vec<(&'static str, bool)>> {
    let (uring, _) = set_up(1)?;
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe).map_err(|e| refused("io_uring_register(PROBE)", &e))?;
    Ok([
        ("CONNECT", opcode::Connect::CODE),
        ("SEND", opcode::Send::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("RECV (multishot with 6.0)", opcode::Recv::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel2::CODE),
        ("MADVISE", opcode::Madvise::CODE),
        ("SEND_ZC", opcode::SendZc::CODE),
        ("SENDMSG_ZC", opcode::SendMsgZc::CODE),
    ]
    .into_iter()
    .map(|(name, code)| (name, probe.is_supported(code)))
    .collect())
}

/// Ring flags that this kernel lacks, in words; empty when all are there.
///
/// Errors: as [`Ring::new`].
pub fn lacking() -> Result<Vec<String>> {
    Ok(set_up(1)?.1)
}

// A notification's copied mark is the sign bit of an otherwise zero result (IORING_NOTIF_USAGE_ZC_COPIED = 1 << 31).
const _: () = assert!(ZC_COPIED as u32 == 1 << 31);
const _: () = assert!(size_of::<types::BufRingEntry>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_packing() {
        for op in [Op::Connect, Op::Send, Op::Recv, Op::Cancel, Op::Fetch] {
            for conn in [0, 1, 0xff_ffff] {
                for generation in [0, 7, u16::MAX] {
                    assert_eq!(unpack(pack(op, ConnId(conn), generation)), Some((op, ConnId(conn), generation)));
                }
            }
        }
        assert_eq!(unpack(0), None);
    }

    #[test]
    fn a_stretch_that_is_on_the_disk_is_fetched_beside_the_ring() {
        let mut file = tempfile::tempfile_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let bytes = 3 * CHUNK_BYTES;
        io::Write::write_all(&mut file, &vec![7; bytes as usize]).unwrap();
        file.sync_all().unwrap();
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let map = Arc::new(Map::file(file.try_clone().unwrap(), bytes).unwrap());
        let resident = Arc::new(Resident::new(map, u64::MAX));
        let config = RingConfig {
            connections: 1,
            head_bytes: 64,
            spans: 1,
            recv_buffers: 16,
            addresses: Vec::new(),
            sources: Vec::new(),
            options: SocketOptions::default(),
        };
        let mut ring = Ring::new(&config, resident, Vec::new()).unwrap();
        let fetch = |ring: &mut Ring, range: Range<u64>| {
            ring.fetch(ConnId(0), 5, &range);
            let mut out = [EMPTY_COMPLETION; 4];
            for _ in 0..500 {
                ring.submit_and_wait(10_000_000).unwrap();
                if ring.completions(&mut out) > 0 {
                    break;
                }
            }
            assert_eq!((out[0].op, out[0].conn, out[0].generation, ring.in_kernel()), (Op::Fetch, ConnId(0), 5, 0));
            out[0].result
        };
        let all = [Span { offset: 1, bytes: bytes - 1 }];
        // A file system in memory has nothing on a disk; then the fetch alone is seen.
        let range = ring.cold(&all).unwrap_or(0..bytes);
        assert_eq!(fetch(&mut ring, range.clone()), 0);
        ring.fetched(range);
        assert_eq!(ring.cold(&all), None);
        file.set_len(0).unwrap();
        assert_eq!(fetch(&mut ring, 0..bytes), -libc::EFAULT, "the file has no such bytes any more");
    }

    #[test]
    fn refusals_name_the_cause_and_the_cure() {
        let text = refused("io_uring_setup", &io::Error::from_raw_os_error(libc::ENOSYS)).to_string();
        assert!(text.contains("ENOSYS") && text.contains("5.19"), "{text}");
        let text = refused("io_uring_setup", &io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(text.contains("locked-memory") && text.contains("ulimit -l"), "{text}");
        let text = refused("io_uring_setup", &io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(text.contains("io_uring_disabled") || text.contains("seccomp"), "{text}");
    }
}
