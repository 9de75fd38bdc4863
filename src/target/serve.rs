//! The loop of one thread in the plain modes: epoll, accept, turns of connections, timers.
//!
//! Edge-triggered and registered once: a request costs one read and one write, and the wait is shared by all that are ready.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        memfd::{MFdFlags, memfd_create},
        socket::{SockFlag, accept4},
    },
};
use socket2::{SockRef, Socket};

use crate::data::units::MILLISECOND;

use super::{
    answer::{self, After},
    conn::{Conn, Fate, Fill, Key, READ_BYTES, SINK_BYTES, Shared, Wake},
    log::Log,
    script::Script,
    tally::Tally,
    timers::{Timers, monotonic_ns},
};

/// Events taken by one wait.
const EVENTS_PER_WAIT: usize = 512;
/// Connections accepted before the others have their turn.
const ACCEPTS_PER_TURN: u32 = 64;
/// Pause of accepting when descriptors or memory have run out.
const ACCEPT_PAUSE_NS: u64 = 50 * MILLISECOND;
/// Lines of the log wait at most this long when the thread has nothing else to do.
const LOG_FLUSH_MS: u16 = 100;
/// Answers up to this length are one contiguous copy; longer ones come from the file in memory.
const FILL_BYTES_MIN: u64 = 32 << 10;
/// Length of that file, a whole number of pages: an answer of up to 1 MiB is one call.
const FILL_FILE_BYTES: usize = 1 << 20;

const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const STOP: u64 = u64::MAX - 2;

/// What a thread is given.
pub struct Thread<'a> {
    /// Its number.
    pub index: usize,
    /// Its listener, non-blocking; several threads may share one.
    pub listener: Socket,
    /// Becomes readable when it is time to end, and stays so.
    pub stop: OwnedFd,
    /// Options and fates.
    pub script: &'a Script,
    /// Its counts.
    pub tally: &'a Tally,
    /// The log that all threads share.
    pub log: Option<Arc<File>>,
    /// Seconds since the Unix epoch when the target started.
    pub created_s: u64,
}

/// Everything of the loop that can fail at set-up has not failed.
pub struct Ready<'a> {
    epoll: Epoll,
    thread: Thread<'a>,
    shared: Shared<'a>,
}

impl<'a> Ready<'a> {
    /// Takes what the loop needs from the system.
    pub fn new(thread: Thread<'a>) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timers = Timers::new()?;
        epoll.add(thread.stop.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
        epoll.add(timers.fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))?;
        epoll.add(&thread.listener, EpollEvent::new(listener_events(), LISTENER))?;
        let options = &thread.script.options;
        let is_large = options.bytes.filter(|&b| b > FILL_BYTES_MIN);
        let fill = is_large.map(|_| fill()).transpose()?;
        let log = thread.log.clone().map(|file| Log::new(file, thread.index));
        let is_stamped =
            log.is_some() || thread.script.is_timed() || options.slow_read > 0 || options.idle_close_ns.is_some();
        let shared = Shared {
            script: thread.script,
            tally: thread.tally,
            timers,
            out: Vec::with_capacity(READ_BYTES),
            buf: vec![0; READ_BYTES],
            sink: vec![0; SINK_BYTES],
            null: null_answer(options.status, options.bytes),
            fill,
            log,
            is_stamped,
            created_s: thread.created_s,
        };
        Ok(Self { epoll, thread, shared })
    }

    /// Serves until it is told to stop.
    pub fn run(self) {
        Loop {
            epoll: self.epoll,
            thread: self.thread,
            shared: self.shared,
            conns: Vec::new(),
            free: Vec::new(),
            generation: 0,
            accepted: 0,
            again: Vec::new(),
        }
        .run();
    }
}

/// With one listener on several threads (unix sockets) an event wakes one of them.
fn listener_events() -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE
}

/// The whole answer of `null`, as most clients get it.
fn null_answer(status: u16, bytes: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    match status {
        400.. => answer::json(&mut out, status, &answer::error_body(status, "asked for"), After::Keep),
        _ => answer::json(&mut out, status, &answer::null_body(bytes), After::Keep),
    };
    out
}

/// What large answers are sent from, see [`Fill`].
fn fill() -> nix::Result<Fill> {
    let file = memfd_create("ringload-target", MFdFlags::MFD_CLOEXEC)?;
    let mut content = vec![b' '; FILL_FILE_BYTES - answer::NULL_BODY.len()];
    content.extend_from_slice(answer::NULL_BODY);
    let mut written = 0;
    while written < content.len() {
        written += nix::unistd::write(&file, &content[written..])?;
    }
    Ok(Fill { file, bytes: FILL_FILE_BYTES as u64 })
}

struct Slot {
    generation: u32,
    conn: Option<Conn>,
}

struct Loop<'a> {
    epoll: Epoll,
    thread: Thread<'a>,
    shared: Shared<'a>,
    conns: Vec<Slot>,
    free: Vec<u32>,
    generation: u32,
    accepted: u64,
    /// Connections with more to do than their turn allowed.
    again: Vec<Key>,
}

impl Loop<'_> {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        loop {
            let timeout = self.timeout();
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(Errno::EINTR) => continue,
                // Only a broken descriptor table of our own can make a wait fail; then there is nothing to serve with.
                Err(_) => break,
            };
            if count == 0
                && let Some(log) = &mut self.shared.log
            {
                log.flush(self.thread.tally);
            }
            let again = std::mem::take(&mut self.again);
            if events[..count].iter().any(|e| e.data() == STOP) {
                break;
            }
            for event in &events[..count] {
                self.dispatch(event);
            }
            for key in again {
                self.on(key, |conn, shared| conn.turn(shared));
            }
            self.fire();
        }
        if let Some(log) = &mut self.shared.log {
            log.flush(self.thread.tally);
        }
    }

    /// How long to wait: not at all with work at hand, else until an event; the log is flushed when all is quiet.
    fn timeout(&mut self) -> EpollTimeout {
        if !self.again.is_empty() {
            return EpollTimeout::ZERO;
        }
        if !self.shared.timers.is_empty() && self.shared.timers.arm(monotonic_ns()).is_err() {
            // A timerfd refuses only times that ours cannot be; a wait of 1 ms at least loses nothing but precision.
            return EpollTimeout::from(1u8);
        }
        match &self.shared.log {
            Some(log) if log.is_pending() => EpollTimeout::from(LOG_FLUSH_MS),
            _ => EpollTimeout::NONE,
        }
    }

    fn dispatch(&mut self, event: &EpollEvent) {
        match event.data() {
            LISTENER => self.accept(),
            TIMER | STOP => {}
            data => {
                let key = Key { slot: data as u32, generation: (data >> 32) as u32 };
                let flags = event.events();
                let hung_up = flags.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
                let readable = flags.contains(EpollFlags::EPOLLIN);
                self.on(key, |conn, shared| {
                    conn.ready(readable, hung_up);
                    conn.turn(shared)
                });
            }
        }
    }

    /// Lets a connection act, when it is still the one that is meant, and does what that comes to.
    fn on(&mut self, key: Key, act: impl FnOnce(&mut Conn, &mut Shared<'_>) -> Fate) {
        let Some(slot) = self.conns.get_mut(key.slot as usize) else { return };
        if slot.generation != key.generation {
            return;
        }
        let Some(conn) = &mut slot.conn else { return };
        match act(conn, &mut self.shared) {
            Fate::Wait => {}
            Fate::Again => self.again.push(key),
            Fate::Close => {
                // The close takes the descriptor out of the epoll set.
                slot.conn = None;
                self.free.push(key.slot);
            }
        }
    }

    fn fire(&mut self) {
        if self.shared.timers.is_empty() {
            return;
        }
        let now_ns = monotonic_ns();
        while let Some((due_ns, (wake, key))) = self.shared.timers.pop_due(now_ns) {
            if wake == Wake::Accept {
                // Taken out when it could not accept; an error here leaves the thread without new connections, not without
                // its old ones.
                let _ = self.epoll.add(&self.thread.listener, EpollEvent::new(listener_events(), LISTENER));
            } else {
                self.on(key, |conn, shared| conn.wake(wake, due_ns, now_ns, shared));
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match accept4(&self.thread.listener, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                Ok(fd) => self.open(fd),
                Err(Errno::EAGAIN) => return,
                // The client gave up before we came to it.
                Err(Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO) => {}
                Err(_) => {
                    // EMFILE, ENFILE, ENOBUFS, ENOMEM: the event would come again at once, and nothing would be done but that.
                    let _ = self.epoll.delete(&self.thread.listener);
                    let at_ns = monotonic_ns() + ACCEPT_PAUSE_NS;
                    self.shared.timers.push(at_ns, (Wake::Accept, Key { slot: 0, generation: 0 }));
                    return;
                }
            }
        }
    }

    fn open(&mut self, fd: OwnedFd) {
        // Fails on a unix socket, which has no such delay.
        let _ = SockRef::from(&fd).set_tcp_nodelay(true);
        let slot = self.free.pop().unwrap_or(self.conns.len() as u32);
        if slot as usize == self.conns.len() {
            self.conns.push(Slot { generation: 0, conn: None });
        }
        self.generation = self.generation.wrapping_add(1);
        // The tokens above have all upper bits set: no connection has them.
        if self.generation == u32::MAX {
            self.generation = 1;
        }
        let key = Key { slot, generation: self.generation };
        let data = u64::from(key.generation) << 32 | u64::from(slot);
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        if self.epoll.add(&fd, EpollEvent::new(flags, data)).is_err() {
            // ENOMEM or ENOSPC: this client is sent away.
            self.free.push(slot);
            return;
        }
        let conn = Conn::new(fd, key, self.accepted, &mut self.shared);
        self.accepted += 1;
        self.thread.tally.connections.add(1);
        self.conns[slot as usize] = Slot { generation: key.generation, conn: Some(conn) };
    }
}
