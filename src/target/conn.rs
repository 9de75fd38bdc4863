//! One connection of the plain modes (null, echo, check, chat) as a state machine over a non-blocking socket.
//!
//! Promises: answers in the order of the requests; one send for all answers that one read brought; a body is looked at and
//! dropped, never kept (but for `echo`); while an answer is held back or a client does not read, nothing more is read.
//!
//! This file is long because one connection's whole life, reading, answering and closing, is one state machine.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::{
        sendfile::sendfile64,
        socket::{MsgFlags, Shutdown, recv, send, shutdown},
    },
};
use socket2::SockRef;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::data::{results::WrongBody, units::SECOND};

use super::{
    answer::{self, After, Length},
    log::{Line, Log},
    options::Mode,
    request::{Bad, Framing, Head, Parser, Step},
    script::{Act, Script, Verdict},
    tally::Tally,
    timers::{Timers, monotonic_ns},
};

/// One read. Measured for hashing: 256 KiB stay in a second-level cache of 1 to 2 MiB with room to spare.
pub const READ_BYTES: usize = 256 << 10;
/// The read at the start of a request in modes that drop bodies: enough for pipelined small ones; the rest of a large body is
/// then dropped inside the kernel, uncopied.
const HEAD_READ_BYTES: usize = 16 << 10;
/// Body bytes dropped in the kernel by one call.
pub const SINK_BYTES: usize = 4 << 20;
/// A rest of a body shorter than this is read with what follows it.
const SINK_BYTES_MIN: u64 = 4 << 10;
/// Reads and writes of one connection before the others have their turn.
const MOVES_PER_TURN: u32 = 16;
/// The longest body that `echo` keeps: the largest that a client of ours is tested with.
const ECHO_BYTES_MAX: u64 = 64 << 20;
/// How long a refused client may go on sending before its connection is reset.
const LINGER_NS: u64 = SECOND;
/// Reads a second of `slow_read`: portions of 20 ms.
const SLOW_READS_PER_S: u64 = 50;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// An answer is due.
    Answer,
    /// Look whether the connection was idle for long enough.
    Idle,
    /// A refused client had its time.
    Linger,
    /// The next slow read.
    Read,
    /// Accept again after descriptors ran out.
    Accept,
}

/// A connection slot and the use of it that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Index into the table of connections.
    pub slot: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

/// A file in memory that answers of any size are sent from without a copy: spaces with a small JSON object at the very end. An
/// answer of any length is spaces, as many as it takes, and then the end of the file: JSON may begin with spaces.
#[derive(Debug)]
pub struct Fill {
    /// `memfd_create(2)`.
    pub file: OwnedFd,
    /// Its length.
    pub bytes: u64,
}

/// The part of the file that stands at an index of a body: its offset, and how many bytes of the body it covers at most.
const fn fill_span(file_bytes: u64, body_bytes: u64, at: u64) -> (u64, u64) {
    let last_from = body_bytes.saturating_sub(file_bytes);
    if at < last_from {
        // The last page, where the object is, is left out of the repetition.
        let spaces = file_bytes - 4096;
        let offset = at % spaces;
        let (room, left) = (spaces - offset, last_from - at);
        return (offset, if room < left { room } else { left });
    }
    (at + file_bytes - (body_bytes - last_from) - last_from, body_bytes - at)
}

/// What all connections of a thread share.
pub struct Shared<'a> {
    /// Options and fates.
    pub script: &'a Script,
    /// Counts.
    pub tally: &'a Tally,
    /// Due times.
    pub timers: Timers<(Wake, Key)>,
    /// Answers of the connection at hand, emptied before the next.
    pub out: Vec<u8>,
    /// Reads go here.
    pub buf: Vec<u8>,
    /// Never touched by anyone: where the kernel would put bytes that it drops.
    pub sink: Vec<u8>,
    /// The whole answer of `null` to a client that keeps its connection.
    pub null: Vec<u8>,
    /// Large answers.
    pub fill: Option<Fill>,
    /// One line a request.
    pub log: Option<Log>,
    /// True when requests are stamped.
    pub is_stamped: bool,
    /// When the target started, for `created`.
    pub created_s: u64,
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits for an event or a timer.
    Wait,
    /// It has more to do, after the others.
    Again,
    /// It is over.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are read and answered.
    Open,
    /// The answer to the request at hand is due later.
    Waiting(Verdict),
    /// Closed when all is sent.
    Closing,
    /// Refused: when all is sent the sending side is closed, and input is dropped until the client closes.
    Refusing,
    /// That, sent.
    Lingering,
    /// Reset when all is sent.
    Resetting,
}

/// A connection.
pub struct Conn {
    fd: OwnedFd,
    key: Key,
    /// Number within the thread, for the log.
    number: u64,
    state: State,
    parser: Parser,
    /// The kernel may have something to read.
    readable: bool,
    /// The client has closed its side: read until the end is seen.
    hung_up: bool,
    /// Its end was seen.
    ended: bool,
    /// Input that was read and not looked at yet: an answer is due first.
    stash: Vec<u8>,
    /// What the socket did not take.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Part of the filling that comes behind `unsent`.
    fill_at: u64,
    fill_end: u64,
    /// Answers in `out`, `unsent` and the filling.
    answers_unsent: u64,
    answered: u32,
    /// Not read before this time (`slow_read`).
    read_at_ns: u64,
    idle_since_ns: u64,
    request: Request,
}

/// The request at hand.
#[derive(Default)]
struct Request {
    head: Head,
    body_bytes: u64,
    body: Vec<u8>,
    /// For a body in pieces; kept for the next one.
    hash: Option<Box<Xxh3>>,
    /// The digest of a body that came in one piece.
    digest: Option<u64>,
    /// Whole, and not in the log yet.
    is_open: bool,
    read_ns: u64,
    first_ns: u64,
    whole_ns: u64,
}

impl Conn {
    /// A fresh connection.
    pub fn new(fd: OwnedFd, key: Key, number: u64, shared: &mut Shared<'_>) -> Self {
        let mut conn = Self {
            fd,
            key,
            number,
            state: State::Open,
            parser: Parser::default(),
            readable: false,
            hung_up: false,
            ended: false,
            stash: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
            fill_at: 0,
            fill_end: 0,
            answers_unsent: 0,
            answered: 0,
            read_at_ns: 0,
            idle_since_ns: 0,
            request: Request::default(),
        };
        if let Some(idle_ns) = shared.script.options.idle_close_ns {
            conn.idle_since_ns = monotonic_ns();
            shared.timers.push(conn.idle_since_ns.saturating_add(idle_ns), (Wake::Idle, key));
        }
        conn
    }

    /// Notes what the kernel reported.
    pub fn ready(&mut self, readable: bool, hung_up: bool) {
        self.readable |= readable || hung_up;
        self.hung_up |= hung_up;
    }

    /// A timer of this connection went off.
    pub fn wake(&mut self, wake: Wake, due_ns: u64, now_ns: u64, shared: &mut Shared<'_>) -> Fate {
        match wake {
            Wake::Answer => {
                if let State::Waiting(verdict) = self.state {
                    self.state = State::Open;
                    self.answer(verdict.act, shared);
                    if self.send_out(shared).is_err() {
                        return self.broken(shared);
                    }
                    shared.tally.late(monotonic_ns().saturating_sub(due_ns));
                }
                self.turn(shared)
            }
            Wake::Idle => self.look_idle(now_ns, shared),
            Wake::Linger => Fate::Close,
            Wake::Read | Wake::Accept => self.turn(shared),
        }
    }

    fn look_idle(&mut self, now_ns: u64, shared: &mut Shared<'_>) -> Fate {
        let Some(idle_ns) = shared.script.options.idle_close_ns else { return Fate::Wait };
        let since = if self.is_idle() { self.idle_since_ns } else { now_ns };
        let close_ns = since.saturating_add(idle_ns);
        if close_ns <= now_ns {
            shared.tally.closed.add(1);
            return Fate::Close;
        }
        shared.timers.push(close_ns, (Wake::Idle, self.key));
        Fate::Wait
    }

    fn is_idle(&self) -> bool {
        self.state == State::Open && self.parser.at_start() && self.stash.is_empty() && !self.has_unsent()
    }

    fn has_unsent(&self) -> bool {
        self.unsent_at < self.unsent.len() || self.has_fill()
    }

    fn has_fill(&self) -> bool {
        self.fill_at < self.fill_end
    }

    /// Does what can be done now, for a bounded number of moves.
    pub fn turn(&mut self, shared: &mut Shared<'_>) -> Fate {
        for _ in 0..MOVES_PER_TURN {
            if self.has_unsent() {
                match self.send_unsent(shared) {
                    Ok(true) => continue,
                    Ok(false) => return if self.hung_up && self.is_gone() { self.broken(shared) } else { Fate::Wait },
                    Err(_) => return self.broken(shared),
                }
            }
            let moved = match self.state {
                State::Open if !self.stash.is_empty() => {
                    let stash = std::mem::take(&mut self.stash);
                    self.take_in(&stash, shared)
                }
                State::Open if self.ended => return self.end(shared),
                State::Open => match self.read(shared) {
                    Ok(true) => Ok(()),
                    Ok(false) => return Fate::Wait,
                    Err(e) => Err(e),
                },
                State::Waiting(_) => {
                    return if self.hung_up && self.is_gone() { self.broken(shared) } else { Fate::Wait };
                }
                State::Closing => return Fate::Close,
                State::Resetting => return self.reset(),
                State::Refusing => self.refuse(shared),
                State::Lingering => return self.linger(shared),
            };
            if moved.is_err() {
                return self.broken(shared);
            }
        }
        Fate::Again
    }

    /// True when the connection is gone as a whole: a client that only closed its sending side still gets its answer.
    fn is_gone(&self) -> bool {
        matches!(SockRef::from(&self.fd).take_error(), Ok(Some(_)) | Err(_))
    }

    fn broken(&mut self, shared: &mut Shared<'_>) -> Fate {
        if !self.is_idle() {
            shared.tally.aborted.add(1);
            self.log(0, shared);
        }
        Fate::Close
    }

    /// The client closed its side and everything that it asked for was answered.
    fn end(&mut self, shared: &mut Shared<'_>) -> Fate {
        if self.parser.at_start() { Fate::Close } else { self.broken(shared) }
    }

    fn reset(&self) -> Fate {
        // A close with a linger time of 0 sends RST (socket(7)).
        let _ = SockRef::from(&self.fd).set_linger(Some(std::time::Duration::ZERO));
        Fate::Close
    }

    fn refuse(&mut self, shared: &mut Shared<'_>) -> nix::Result<()> {
        shutdown(self.fd.as_raw_fd(), Shutdown::Write)?;
        self.state = State::Lingering;
        shared.timers.push(monotonic_ns() + LINGER_NS, (Wake::Linger, self.key));
        Ok(())
    }

    /// Drops input: a close with unread input would be a reset, which may take the answer with it (RFC 9112 section 9.6).
    fn linger(&mut self, shared: &mut Shared<'_>) -> Fate {
        self.stash = Vec::new();
        for _ in 0..MOVES_PER_TURN {
            match recv(self.fd.as_raw_fd(), &mut shared.buf, MsgFlags::MSG_DONTWAIT) {
                Ok(1..) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Fate::Wait,
                Ok(0) | Err(_) => return Fate::Close,
            }
        }
        Fate::Again
    }

    /// Reads once and takes in what came. False when there is nothing to read.
    fn read(&mut self, shared: &mut Shared<'_>) -> nix::Result<bool> {
        if !self.readable {
            return Ok(false);
        }
        let looks = matches!(shared.script.options.mode, Mode::Check | Mode::Echo);
        let slow = shared.script.options.slow_read;
        if slow > 0 && !self.may_read(shared) {
            return Ok(false);
        }
        let left = self.parser.length_left();
        let drops = !looks && slow == 0 && left >= SINK_BYTES_MIN;
        let wanted = match left {
            _ if drops => usize::try_from(left).unwrap_or(SINK_BYTES).min(SINK_BYTES),
            _ if slow > 0 => usize::try_from(slow / SLOW_READS_PER_S).unwrap_or(READ_BYTES).clamp(1, READ_BYTES),
            0 if !looks => HEAD_READ_BYTES,
            _ => READ_BYTES,
        };
        let got = if drops {
            // MSG_TRUNC on a TCP socket drops the bytes without copying them (tcp(7)); a unix socket copies them to the sink.
            recv(self.fd.as_raw_fd(), &mut shared.sink[..wanted], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)
        } else {
            recv(self.fd.as_raw_fd(), &mut shared.buf[..wanted], MsgFlags::MSG_DONTWAIT)
        };
        let got = match got {
            Ok(0) => {
                self.ended = true;
                return Ok(true);
            }
            Ok(n) => n,
            Err(Errno::EAGAIN) => {
                self.readable = false;
                return Ok(false);
            }
            Err(Errno::EINTR) => return Ok(true),
            Err(e) => return Err(e),
        };
        // A short read has emptied the socket (epoll(7)); what comes later brings an event of its own.
        self.readable = got == wanted || self.hung_up;
        if shared.is_stamped {
            self.request.read_ns = monotonic_ns();
        }
        if let Some(pause_ns) = (got as u64).saturating_mul(SECOND).checked_div(slow) {
            self.read_at_ns = self.request.read_ns + pause_ns;
        }
        if drops {
            self.parser.skip(got as u64);
            self.request.body_bytes += got as u64;
            self.take_in(&[], shared)?;
        } else {
            let buf = std::mem::take(&mut shared.buf);
            let taken = self.take_in(&buf[..got], shared);
            shared.buf = buf;
            taken?;
        }
        Ok(true)
    }

    fn may_read(&mut self, shared: &mut Shared<'_>) -> bool {
        if self.read_at_ns <= monotonic_ns() {
            return true;
        }
        shared.timers.push(self.read_at_ns, (Wake::Read, self.key));
        false
    }

    /// Parses input, answers what is whole, sends the answers; what cannot be looked at yet goes to the stash.
    fn take_in(&mut self, input: &[u8], shared: &mut Shared<'_>) -> nix::Result<()> {
        let mut used = 0;
        while self.state == State::Open && !self.has_fill() {
            if self.parser.at_start() && used < input.len() {
                self.request.first_ns = self.request.read_ns;
            }
            let (n, step) = self.parser.step(&input[used..]);
            used += n;
            match step {
                Step::More => break,
                Step::Head(head) => self.begin(head, used == input.len(), shared),
                Step::Body(n) => self.body(&input[used - n..used], shared),
                Step::Whole => self.whole(shared),
                Step::Bad(why) => self.refused(why, shared),
            }
        }
        self.stash.extend_from_slice(&input[used..]);
        self.send_out(shared)
    }

    fn begin(&mut self, head: Head, nothing_behind: bool, shared: &mut Shared<'_>) {
        self.request.head = head;
        self.request.body_bytes = 0;
        self.request.digest = None;
        self.request.is_open = false;
        if head.expect_continue && nothing_behind && head.framing != Framing::None && !head.http10 {
            shared.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    fn body(&mut self, piece: &[u8], shared: &mut Shared<'_>) {
        let request = &mut self.request;
        match shared.script.options.mode {
            Mode::Check if request.head.digest.is_some() => {
                if request.head.framing == Framing::Length(piece.len() as u64) {
                    request.digest = Some(xxh3_64(piece));
                } else {
                    let hash = request.hash.get_or_insert_with(|| Box::new(Xxh3::new()));
                    if request.body_bytes == 0 {
                        hash.reset();
                    }
                    hash.update(piece);
                }
            }
            Mode::Echo => {
                if request.body_bytes + piece.len() as u64 > ECHO_BYTES_MAX {
                    let why = Bad { status: 413, what: "echo keeps bodies of at most 64 MiB" };
                    return self.refused(why, shared);
                }
                request.body.extend_from_slice(piece);
            }
            _ => {}
        }
        self.request.body_bytes += piece.len() as u64;
    }

    fn whole(&mut self, shared: &mut Shared<'_>) {
        shared.tally.requests.add(1);
        shared.tally.body_bytes.add(self.request.body_bytes);
        self.request.is_open = true;
        if shared.is_stamped {
            self.request.whole_ns = monotonic_ns();
        }
        if shared.script.is_plain() {
            return self.answer(Act::Answer, shared);
        }
        let verdict = shared.script.verdict(self.request.whole_ns);
        let (due_ns, moved) = shared.script.due(&verdict, shared.script.options.delay_ns, 0);
        if verdict.stalled || moved {
            shared.tally.stalled.add(1);
        }
        if due_ns > self.request.whole_ns {
            self.state = State::Waiting(verdict);
            shared.timers.push(due_ns, (Wake::Answer, self.key));
        } else {
            self.answer(verdict.act, shared);
        }
    }

    /// Puts the answer of the request at hand up for sending.
    fn answer(&mut self, act: Act, shared: &mut Shared<'_>) {
        self.answered = self.answered.wrapping_add(1);
        let every = shared.script.options.close_every;
        let closes = every > 0 && self.answered.is_multiple_of(every);
        if closes && !self.request.head.close {
            shared.tally.closed.add(1);
        }
        let head = self.request.head;
        let after = match () {
            () if head.close || closes || act == Act::Truncate => After::Close,
            () if head.http10 => After::KeepSaid,
            () => After::Keep,
        };
        let status = match act {
            Act::Reset => {
                shared.tally.resets_injected.add(1);
                self.state = State::Resetting;
                self.log(0, shared);
                return;
            }
            Act::Error => {
                shared.tally.errors_injected.add(1);
                let length = answer::json(&mut shared.out, 500, &answer::error_body(500, "injected"), after);
                self.cut_body(length, length, shared);
                500
            }
            _ => self.mode_answer(act, after, shared),
        };
        self.answers_unsent += 1;
        if after == After::Close {
            self.state = State::Closing;
        }
        self.log(status, shared);
        if shared.script.options.idle_close_ns.is_some() {
            self.idle_since_ns = monotonic_ns();
        }
    }

    /// The answer of the mode; returns its status.
    fn mode_answer(&mut self, act: Act, after: After, shared: &mut Shared<'_>) -> u16 {
        let status = shared.script.options.status;
        let length = match shared.script.options.mode {
            Mode::Null if shared.fill.is_some() && !answer::is_bodyless(status) => {
                return self.filled(act, after, shared);
            }
            Mode::Null if after == After::Keep && act == Act::Answer && !self.request.head.head_only => {
                shared.out.extend_from_slice(&shared.null);
                return status;
            }
            _ if status >= 400 => {
                answer::json(&mut shared.out, status, &answer::error_body(status, "asked for"), after)
            }
            Mode::Null => answer::json(&mut shared.out, status, &answer::null_body(shared.script.options.bytes), after),
            Mode::Echo => {
                let body = std::mem::take(&mut self.request.body);
                answer::json(&mut shared.out, status, &body, after)
            }
            Mode::Check => return self.checked(act, after, shared),
            Mode::Chat | Mode::Sse => {
                let options = &shared.script.options;
                let prompt = options.prompt_tokens.unwrap_or(answer::prompt_tokens(self.request.body_bytes));
                let body = answer::chat(options.tokens, prompt, shared.created_s);
                answer::json(&mut shared.out, status, &body, after)
            }
        };
        self.finish_body(act, length, shared);
        status
    }

    /// Takes back what a HEAD or a truncated answer must not have of a body that was just appended.
    fn finish_body(&mut self, act: Act, length: usize, shared: &mut Shared<'_>) {
        let kept = if act == Act::Truncate {
            shared.tally.truncations_injected.add(1);
            length / 2
        } else {
            length
        };
        self.cut_body(length, kept, shared);
    }

    fn cut_body(&self, length: usize, kept: usize, shared: &mut Shared<'_>) {
        let kept = if self.request.head.head_only { 0 } else { kept };
        shared.out.truncate(shared.out.len().saturating_sub(length - kept));
    }

    /// Compares the body with what was announced, where something was.
    fn checked(&mut self, act: Act, after: After, shared: &mut Shared<'_>) -> u16 {
        let request = &self.request;
        let Some(expected_xxh3) = request.head.digest else {
            let length = answer::json(&mut shared.out, 200, b"{\"ok\":true,\"verified\":false}", after);
            self.finish_body(act, length, shared);
            return 200;
        };
        let seen_xxh3 = match (request.digest, &request.hash) {
            (Some(digest), _) => digest,
            (None, Some(hash)) if request.body_bytes > 0 => hash.digest(),
            _ => xxh3_64(b""),
        };
        let announced = match request.head.framing {
            Framing::Length(n) => n,
            Framing::Chunked => request.body_bytes,
            Framing::None => 0,
        };
        let wrong = WrongBody {
            record: request.head.record,
            expected_bytes: request.head.bytes.unwrap_or(announced),
            seen_bytes: request.body_bytes,
            expected_xxh3,
            seen_xxh3,
        };
        shared.tally.verified.add(1);
        let is_same = wrong.expected_bytes == wrong.seen_bytes && expected_xxh3 == seen_xxh3;
        let (status, length) = if is_same {
            (200, answer::json(&mut shared.out, 200, answer::NULL_BODY, after))
        } else {
            shared.tally.wrong_body(wrong);
            (422, answer::json(&mut shared.out, 422, &answer::wrong_body(&wrong), after))
        };
        self.finish_body(act, length, shared);
        status
    }

    /// A large answer: its head now, its body from the file in memory as the socket takes it.
    fn filled(&mut self, act: Act, after: After, shared: &mut Shared<'_>) -> u16 {
        let status = shared.script.options.status;
        let bytes = shared.script.options.bytes.unwrap_or(0);
        answer::head(&mut shared.out, status, "application/json", Length::Bytes(bytes), after);
        if self.request.head.head_only {
            return status;
        }
        self.fill_at = 0;
        self.fill_end = bytes;
        if act == Act::Truncate {
            shared.tally.truncations_injected.add(1);
            self.fill_end /= 2;
        }
        status
    }

    fn refused(&mut self, why: Bad, shared: &mut Shared<'_>) {
        shared.tally.bad_requests.add(1);
        answer::json(&mut shared.out, why.status, &answer::error_body(why.status, why.what), After::Close);
        self.state = State::Refusing;
    }

    fn log(&mut self, status: u16, shared: &mut Shared<'_>) {
        let is_open = std::mem::take(&mut self.request.is_open);
        let Some(log) = shared.log.as_mut().filter(|_| is_open) else { return };
        let request = &self.request;
        let line = Line {
            first_ns: request.first_ns,
            whole_ns: request.whole_ns,
            answered_ns: monotonic_ns(),
            connection: self.number,
            record: request.head.record,
            body_bytes: request.body_bytes,
            status,
        };
        log.line(&line, shared.tally);
    }

    /// Sends the answers in `out`; what the socket does not take is kept.
    fn send_out(&mut self, shared: &mut Shared<'_>) -> nix::Result<()> {
        let mut sent = 0;
        while sent < shared.out.len() {
            match send(self.fd.as_raw_fd(), &shared.out[sent..], self.send_flags()) {
                Ok(n) => sent += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(e) => {
                    shared.out.clear();
                    return Err(e);
                }
            }
        }
        self.unsent.clear();
        self.unsent_at = 0;
        self.unsent.extend_from_slice(&shared.out[sent..]);
        shared.out.clear();
        if !self.has_unsent() {
            self.all_sent(shared);
        }
        Ok(())
    }

    fn send_flags(&self) -> MsgFlags {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // The filling follows at once: no segment of its own for the head.
        if self.has_fill() { flags | MsgFlags::from_bits_retain(nix::libc::MSG_MORE) } else { flags }
    }

    /// One step of sending what is left. True when the socket took all that was tried.
    fn send_unsent(&mut self, shared: &mut Shared<'_>) -> nix::Result<bool> {
        let sent = if self.unsent_at < self.unsent.len() {
            send(self.fd.as_raw_fd(), &self.unsent[self.unsent_at..], self.send_flags()).map(|n| self.unsent_at += n)
        } else {
            self.send_fill(shared)
        };
        match sent {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(false),
            Err(e) => return Err(e),
        }
        if !self.has_unsent() {
            // The buffer of a connection that once did not take a large answer is not kept for its life.
            self.unsent = Vec::new();
            self.unsent_at = 0;
            self.all_sent(shared);
        }
        Ok(true)
    }

    fn send_fill(&mut self, shared: &Shared<'_>) -> nix::Result<()> {
        let body_bytes = shared.script.options.bytes.unwrap_or(0);
        let Some(fill) = &shared.fill else { return Ok(()) };
        let (offset, count) = fill_span(fill.bytes, body_bytes, self.fill_at);
        let count = usize::try_from(count.min(self.fill_end - self.fill_at)).unwrap_or(usize::MAX);
        let sent = sendfile64(self.fd.as_fd(), fill.file.as_fd(), Some(&mut (offset as i64)), count)?;
        // Nothing sent means that the file was cut, which nobody else can do.
        self.fill_at = if sent == 0 { self.fill_end } else { self.fill_at + sent as u64 };
        Ok(())
    }

    fn all_sent(&mut self, shared: &mut Shared<'_>) {
        shared.tally.answers.add(self.answers_unsent);
        self.answers_unsent = 0;
        // Closed with input unread, the connection would be reset, and the answer with it.
        let is_unread = !self.stash.is_empty() || (self.readable && !self.hung_up);
        if self.state == State::Closing && is_unread {
            self.state = State::Refusing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_length_is_spaces_and_the_end_of_the_file() {
        const FILE: u64 = 3 * 4096;
        let file: Vec<u8> =
            (0..FILE).map(|i| if i < FILE - 4 { b' ' } else { b"true"[(i + 4 - FILE) as usize] }).collect();
        for body_bytes in [4, 100, FILE - 1, FILE, FILE + 1, 2 * FILE, 10 * FILE + 17] {
            let mut body = Vec::new();
            while (body.len() as u64) < body_bytes {
                let (offset, count) = fill_span(FILE, body_bytes, body.len() as u64);
                assert!(0 < count && offset + count <= FILE);
                // A socket takes less than it is offered.
                let taken = count.div_ceil(2) as usize;
                body.extend_from_slice(&file[offset as usize..][..taken]);
            }
            assert_eq!(body.len() as u64, body_bytes);
            assert!(body.ends_with(b"true") && body[..body.len() - 4].iter().all(|&b| b == b' '));
        }
    }
}
