//! `mode=sse` on tokio-uring: a current-thread runtime a thread, a task a connection, all socket reads and writes through the ring.
//!
//! Promises: content event k is handed to the kernel at `base + ttft + k * itl`, by absolute times, so that a late event makes
//! no later one late; a client that goes away ends its stream at once. Times come from one timerfd a thread ([`Timers`]):
//! tokio's own timer wheel has a grain of a millisecond. The timerfd, the listener and the stop wait in the runtime's epoll,
//! which is one hop shorter than through the ring, whose own descriptor waits there as well.
//!
//! Three properties of tokio-uring 0.5 shape the code. A dropped read is not cancelled and keeps the descriptor open: a
//! connection is shut down before it is dropped, and a read that watches for the client's end is kept from request to request.
//! Sockets must be blocking, else the ring answers EAGAIN. Buffers are owned by the operation, so they go round in a loop.
//!
//! This file is long because accepting, timing and writing of event streams share one runtime and its timers.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    future::{Future, poll_fn},
    io,
    net::Shutdown,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{SockFlag, accept4},
};
use socket2::{SockRef, Socket};
use tokio::io::{Interest, unix::AsyncFd};

use crate::data::units::SECOND;

use super::{
    answer::{self, After, Events, Length},
    log::{Line, Log},
    request::{Bad, Framing, Head, Parser, Step},
    script::{Act, Script, Verdict},
    tally::Tally,
    timers::{Timers, monotonic_ns},
};

/// Submission queue of a thread; a full one is submitted early, so this is only a batch size.
const SQ_ENTRIES: u32 = 1024;
/// Completion queue: a read and a write for each of 8,000 streams at once before the kernel has to keep some back.
const CQ_ENTRIES: u32 = 16_384;
/// One read of a small request.
const READ_BYTES: usize = 16 << 10;
/// One read of a large body; the buffers are shared by the connections of a thread.
const LARGE_READ_BYTES: usize = 256 << 10;
/// Connections accepted before the others have their turn.
const ACCEPTS_PER_TURN: u32 = 64;
/// Pause of accepting when descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Lines of the log wait at most this long.
const LOG_FLUSH: Duration = Duration::from_millis(100);
/// From the stop to the end.
const STOP_GRACE: Duration = Duration::from_millis(2);
/// How long a refused client may go on sending before its connection is closed all the same.
const LINGER_NS: u64 = SECOND;
/// Bytes of events put together into one write when a client or the machine is behind.
const WRITE_BYTES: usize = 64 << 10;

/// What a thread is given; the fields are those of the plain loop's.
pub struct Thread {
    /// Its number.
    pub index: usize,
    /// Its listener, non-blocking.
    pub listener: Socket,
    /// Becomes readable when it is time to end.
    pub stop: OwnedFd,
    /// Options and fates.
    pub script: Arc<Script>,
    /// The counts of all threads.
    pub tallies: Arc<[Tally]>,
    /// The log that all threads share.
    pub log: Option<Arc<File>>,
    /// Seconds since the Unix epoch when the target started.
    pub created_s: u64,
}

/// A runtime whose ring the kernel has granted.
pub struct Ready {
    runtime: tokio_uring::Runtime,
    thread: Thread,
}

impl Ready {
    /// Asks the kernel for the ring.
    pub fn new(thread: Thread) -> io::Result<Self> {
        // Task work waits for the thread's next call instead of interrupting it; kernels before 5.19 do not know that.
        let cooperative = tokio_uring::uring_builder().setup_coop_taskrun().setup_cqsize(CQ_ENTRIES).clone();
        let plain = tokio_uring::uring_builder().setup_cqsize(CQ_ENTRIES).clone();
        let build = |ring| tokio_uring::Runtime::new(tokio_uring::builder().entries(SQ_ENTRIES).uring_builder(ring));
        let runtime = build(&cooperative).or_else(|_| build(&plain))?;
        Ok(Self { runtime, thread })
    }

    /// Serves until it is told to stop. `begun` is told once, when everything is in place or cannot be.
    pub fn run(self, begun: impl FnOnce(io::Result<()>)) {
        let Self { runtime, thread } = self;
        runtime.block_on(async {
            match Descriptors::new(&thread) {
                Err(e) => begun(Err(e)),
                Ok((descriptors, local)) => {
                    begun(Ok(()));
                    let local = Rc::new(local);
                    descriptors.serve(&local).await;
                    local.flush_log();
                }
            }
        });
    }
}

/// What waits in the runtime's epoll.
struct Descriptors {
    listener: AsyncFd<OwnedFd>,
    timer: AsyncFd<OwnedFd>,
    stop: AsyncFd<OwnedFd>,
}

/// What the tasks of a thread share.
struct Local {
    script: Arc<Script>,
    tallies: Arc<[Tally]>,
    index: usize,
    events: Events,
    timers: RefCell<Timers<u32>>,
    /// One a connection slot: who waits for a time.
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<u32>>,
    large: RefCell<Vec<Vec<u8>>>,
    log: RefCell<Option<Log>>,
    is_stamped: bool,
    accepted: Cell<u64>,
}

impl Descriptors {
    fn new(thread: &Thread) -> io::Result<(Self, Local)> {
        let timers = Timers::new()?;
        let descriptors = Self {
            listener: wait(thread.listener.as_fd().try_clone_to_owned()?)?,
            timer: wait(timers.fd().try_clone_to_owned()?)?,
            stop: wait(thread.stop.try_clone()?)?,
        };
        let log = thread.log.clone().map(|file| Log::new(file, thread.index));
        let local = Local {
            script: thread.script.clone(),
            tallies: thread.tallies.clone(),
            index: thread.index,
            events: Events::new(thread.created_s),
            timers: RefCell::new(timers),
            wakers: RefCell::default(),
            free: RefCell::default(),
            large: RefCell::default(),
            is_stamped: log.is_some(),
            log: RefCell::new(log),
            accepted: Cell::new(0),
        };
        Ok((descriptors, local))
    }

    async fn serve(self, local: &Rc<Local>) {
        let Self { listener, timer, stop } = self;
        tokio_uring::spawn(accept(listener, local.clone()));
        tokio_uring::spawn(tick(timer, local.clone()));
        if local.log.borrow().is_some() {
            tokio_uring::spawn(flush_log(local.clone()));
        }
        // An error means that the runtime is going down, which is the end as well.
        let _ = stop.readable().await;
        // Writes that clients have seen already may have their completions still to be read: they count.
        tokio::time::sleep(STOP_GRACE).await;
    }
}

/// The constructor is deprecated for types that might change their descriptor while it is registered; an `OwnedFd` behind the
/// shared reference that is all we take of it cannot, and the new one is an unsafe fn, which only `sys` may call.
#[expect(deprecated, reason = "sound for OwnedFd, see above")]
fn wait(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

async fn tick(timer: AsyncFd<OwnedFd>, local: Rc<Local>) {
    while let Ok(mut guard) = timer.readable().await {
        guard.clear_ready();
        local.fire();
    }
}

async fn flush_log(local: Rc<Local>) {
    loop {
        tokio::time::sleep(LOG_FLUSH).await;
        local.flush_log();
    }
}

async fn accept(listener: AsyncFd<OwnedFd>, local: Rc<Local>) {
    while let Ok(mut guard) = listener.readable().await {
        for _ in 0..ACCEPTS_PER_TURN {
            match accept4(listener.get_ref(), SockFlag::SOCK_CLOEXEC) {
                Ok(fd) => local.clone().open(fd),
                Err(Errno::EAGAIN) => {
                    guard.clear_ready();
                    break;
                }
                Err(Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO) => {}
                // EMFILE, ENFILE, ENOBUFS, ENOMEM: trying again at once would do nothing but that.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        tokio::task::yield_now().await;
    }
}

impl Local {
    fn tally(&self) -> &Tally {
        &self.tallies[self.index]
    }

    /// Wakes who waits for a time that has come, and sets the timer to the next.
    fn fire(&self) {
        let now_ns = monotonic_ns();
        let mut timers = self.timers.borrow_mut();
        while let Some((_, slot)) = timers.pop_due(now_ns) {
            if let Some(waker) = self.wakers.borrow_mut().get_mut(slot as usize).and_then(Option::take) {
                waker.wake();
            }
        }
        // A timerfd refuses only times that ours cannot be.
        let _ = timers.arm(now_ns);
    }

    fn flush_log(&self) {
        if let Some(log) = self.log.borrow_mut().as_mut().filter(|log| log.is_pending()) {
            log.flush(self.tally());
        }
    }

    fn open(self: Rc<Self>, fd: OwnedFd) {
        // Fails on a unix socket, which has no such delay.
        let is_tcp = SockRef::from(&fd).set_tcp_nodelay(true).is_ok();
        // A descriptor of our own for what the runtime's socket cannot do, only where it may be needed.
        let control = if self.script.options.reset > 0.0 { fd.try_clone().ok() } else { None };
        let stream = Rc::new(if is_tcp {
            Socketed::Tcp(tokio_uring::net::TcpStream::from_std(fd.into()))
        } else {
            Socketed::Unix(tokio_uring::net::UnixStream::from_std(fd.into()))
        });
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut wakers = self.wakers.borrow_mut();
            wakers.push(None);
            wakers.len() as u32 - 1
        });
        let number = self.accepted.get();
        self.accepted.set(number + 1);
        self.tally().connections.add(1);
        tokio_uring::spawn(async move {
            Conn::new(self.clone(), stream, control, slot, number).serve().await;
            self.free.borrow_mut().push(slot);
        });
    }
}

/// A socket of the ring.
enum Socketed {
    Tcp(tokio_uring::net::TcpStream),
    Unix(tokio_uring::net::UnixStream),
}

impl Socketed {
    async fn read(&self, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Self::Tcp(s) => s.read(buf).await,
            Self::Unix(s) => s.read(buf).await,
        }
    }

    async fn write_all(&self, buf: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self {
            Self::Tcp(s) => s.write_all(buf).await,
            Self::Unix(s) => s.write_all(buf).await,
        }
    }

    fn shutdown(&self, how: Shutdown) {
        // A socket that is not connected any more is shut down already.
        let _ = match self {
            Self::Tcp(s) => s.shutdown(how),
            Self::Unix(s) => s.shutdown(how),
        };
    }
}

type Reading = Pin<Box<dyn Future<Output = (io::Result<usize>, Vec<u8>)>>>;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// In order, between requests.
    Done,
    /// The client broke off.
    Broken,
    /// Nothing was asked for too long.
    Idle,
    /// Not HTTP.
    Refused(Bad),
    /// By the script.
    Reset,
}

struct Conn {
    local: Rc<Local>,
    stream: Rc<Socketed>,
    control: Option<OwnedFd>,
    slot: u32,
    number: u64,
    parser: Parser,
    input: Vec<u8>,
    input_at: usize,
    /// A read under way; it outlives the request during which it began.
    reading: Option<Reading>,
    out: Vec<u8>,
    answered: u32,
    line: Line,
    head: Head,
}

impl Conn {
    fn new(local: Rc<Local>, stream: Rc<Socketed>, control: Option<OwnedFd>, slot: u32, number: u64) -> Self {
        Self {
            local,
            stream,
            control,
            slot,
            number,
            parser: Parser::default(),
            input: Vec::new(),
            input_at: 0,
            reading: None,
            out: Vec::new(),
            answered: 0,
            line: Line::default(),
            head: Head::default(),
        }
    }

    async fn serve(mut self) {
        let over = loop {
            if let Err(over) = self.request().await {
                break over;
            }
            match self.answer().await {
                Ok(After::Close) => break Over::Done,
                Ok(_) => {}
                Err(over) => break over,
            }
        };
        let local = self.local.clone();
        match over {
            Over::Done => {}
            Over::Broken => local.tally().aborted.add(1),
            Over::Idle => local.tally().closed.add(1),
            Over::Refused(why) => self.refuse(why).await,
            Over::Reset => {
                debug_assert!(self.reading.is_none(), "a request is whole only when its last read is over");
                if let Some(control) = &self.control {
                    // A close with a linger time of 0 sends RST (socket(7)); no read is under way that would hold it up.
                    let _ = SockRef::from(control).set_linger(Some(Duration::ZERO));
                }
                return;
            }
        }
        if over == Over::Done && self.input_at < self.input.len() {
            self.linger().await;
        }
        self.stream.shutdown(Shutdown::Both);
    }

    /// Reads until a request is whole.
    async fn request(&mut self) -> Result<(), Over> {
        let local = self.local.clone();
        let idle_at_ns = local.script.options.idle_close_ns.map(|ns| monotonic_ns().saturating_add(ns));
        loop {
            if self.parser.at_start() && self.input_at < self.input.len() {
                self.line.first_ns = self.line.whole_ns;
            }
            let (used, step) = self.parser.step(&self.input[self.input_at..]);
            self.input_at += used;
            match step {
                Step::More => {
                    let until_ns = idle_at_ns.filter(|_| self.parser.at_start());
                    if !self.read(until_ns).await? {
                        return Err(if self.parser.at_start() { Over::Done } else { Over::Broken });
                    }
                }
                Step::Head(head) => {
                    self.head = head;
                    self.line.record = head.record;
                    self.line.body_bytes = 0;
                    let has_body = head.framing != Framing::None && self.input_at == self.input.len();
                    if head.expect_continue && has_body && !head.http10 {
                        self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                        self.send().await?;
                    }
                }
                Step::Body(n) => self.line.body_bytes += n as u64,
                Step::Whole => break,
                Step::Bad(why) => return Err(Over::Refused(why)),
            }
        }
        local.tally().requests.add(1);
        local.tally().body_bytes.add(self.line.body_bytes);
        Ok(())
    }

    /// Takes in what one read brings. False at the client's end.
    async fn read(&mut self, until_ns: Option<u64>) -> Result<bool, Over> {
        let mut until = until_ns.map(|ns| Until::new(&self.local, self.slot, ns));
        self.begin_read();
        let Some(reading) = &mut self.reading else { return Err(Over::Broken) };
        let read = poll_fn(|cx| {
            if let Poll::Ready(read) = reading.as_mut().poll(cx) {
                return Poll::Ready(Some(read));
            }
            match &mut until {
                Some(until) => Pin::new(until).poll(cx).map(|()| None),
                None => Poll::Pending,
            }
        });
        match read.await {
            None => Err(Over::Idle),
            Some(read) => self.took(read),
        }
    }

    fn begin_read(&mut self) {
        if self.reading.is_some() {
            return;
        }
        let is_large = self.parser.length_left() > READ_BYTES as u64;
        let mut buf = if is_large {
            self.local.large.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(LARGE_READ_BYTES))
        } else {
            Vec::with_capacity(READ_BYTES)
        };
        buf.clear();
        let stream = self.stream.clone();
        self.reading = Some(Box::pin(async move { stream.read(buf).await }));
    }

    /// Takes what a read has brought behind the input that is still there.
    fn took(&mut self, (got, buf): (io::Result<usize>, Vec<u8>)) -> Result<bool, Over> {
        self.reading = None;
        let got = got.map_err(|_| Over::Broken)?;
        if self.local.is_stamped {
            self.line.whole_ns = monotonic_ns();
        }
        let old = if self.input_at == self.input.len() {
            self.input_at = 0;
            std::mem::replace(&mut self.input, buf)
        } else {
            self.input.extend_from_slice(&buf);
            buf
        };
        if old.capacity() >= LARGE_READ_BYTES {
            self.local.large.borrow_mut().push(old);
        }
        Ok(got > 0)
    }

    /// Waits for a time. A client that goes away before it is [`Over::Broken`]; bytes that it sends are kept for later.
    async fn until(&mut self, due_ns: u64, watch: bool) -> Result<(), Over> {
        let mut until = Until::new(&self.local, self.slot, due_ns);
        while watch && self.input_at == self.input.len() {
            self.begin_read();
            let Some(reading) = &mut self.reading else { break };
            let read = poll_fn(|cx| {
                if let Poll::Ready(read) = reading.as_mut().poll(cx) {
                    return Poll::Ready(Some(read));
                }
                Pin::new(&mut until).poll(cx).map(|()| None)
            });
            match read.await {
                None => return Ok(()),
                Some(read) => {
                    let whole_ns = self.line.whole_ns;
                    if !self.took(read)? {
                        return Err(Over::Broken);
                    }
                    // The stamp of the request at hand stays; the next one's first byte came now, at the latest.
                    self.line.whole_ns = whole_ns;
                }
            }
        }
        until.await;
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Over> {
        let out = std::mem::take(&mut self.out);
        let (sent, mut out) = self.stream.write_all(out).await;
        out.clear();
        self.out = out;
        sent.map_err(|_| Over::Broken)
    }

    /// Answers the request at hand; says how the connection goes on.
    async fn answer(&mut self) -> Result<After, Over> {
        let local = self.local.clone();
        let options = &local.script.options;
        let verdict = local.script.verdict(monotonic_ns());
        if verdict.stalled {
            local.tally().stalled.add(1);
        }
        self.answered = self.answered.wrapping_add(1);
        let closes = options.close_every > 0 && self.answered.is_multiple_of(options.close_every);
        if closes && !self.head.close {
            local.tally().closed.add(1);
        }
        let after = match () {
            () if self.head.close || closes || verdict.act == Act::Truncate => After::Close,
            // Without chunks the close ends the stream.
            () if self.head.http10 => After::Close,
            () => After::Keep,
        };
        let status = if verdict.act == Act::Error { 500 } else { options.status };
        let answered = if status >= 400 || answer::is_bodyless(status) || self.head.head_only {
            self.short(status, after, &verdict).await
        } else {
            self.stream(status, after, &verdict).await
        };
        match answered {
            Ok(()) => local.tally().answers.add(1),
            Err(_) => self.log(0),
        }
        answered?;
        self.log(status);
        Ok(after)
    }

    /// An answer that is no stream.
    async fn short(&mut self, status: u16, after: After, verdict: &Verdict) -> Result<(), Over> {
        let local = self.local.clone();
        let (due_ns, moved) = local.script.due(verdict, 0, 0);
        if moved {
            local.tally().stalled.add(1);
        }
        self.until(due_ns, verdict.act != Act::Reset).await?;
        if verdict.act == Act::Reset {
            local.tally().resets_injected.add(1);
            return Err(Over::Reset);
        }
        let what = if verdict.act == Act::Error { "injected" } else { "asked for" };
        if verdict.act == Act::Error {
            local.tally().errors_injected.add(1);
        }
        if status < 400 && !answer::is_bodyless(status) {
            answer::head(&mut self.out, status, EVENT_STREAM, Length::Chunked, after);
            return self.send().await;
        }
        let length = answer::json(&mut self.out, status, &answer::error_body(status, what), after);
        let kept = match verdict.act {
            _ if self.head.head_only => 0,
            Act::Truncate => {
                local.tally().truncations_injected.add(1);
                length / 2
            }
            _ => length,
        };
        self.out.truncate(self.out.len() - (length - kept));
        self.send().await
    }

    async fn stream(&mut self, status: u16, after: After, verdict: &Verdict) -> Result<(), Over> {
        let local = self.local.clone();
        let options = &local.script.options;
        let framing = if self.head.http10 { Length::UntilClose } else { Length::Chunked };
        answer::head(&mut self.out, status, EVENT_STREAM, framing, after);
        let head_bytes = self.out.len();
        local.events.role(&mut self.out);
        self.unframe(head_bytes);
        // A read under way would hold up the reset.
        let watch = verdict.act != Act::Reset;
        let (due_ns, _) = local.script.due(verdict, 0, 0);
        self.until(due_ns, watch).await?;
        self.send().await?;
        let total = u64::from(options.tokens);
        let count = if verdict.act == Act::Answer { total } else { total / 2 };
        let due =
            |k: u64| local.script.due(verdict, options.ttft_ns.saturating_add(options.itl_ns.saturating_mul(k)), k + 1);
        let mut due_ns = 0;
        let mut k = 0;
        while k < count {
            let (next_ns, moved) = due(k);
            if moved {
                local.tally().stalled.add(1);
            }
            due_ns = next_ns.max(due_ns);
            self.until(due_ns, watch).await?;
            let first = k;
            let first_due_ns = due_ns;
            let now_ns = monotonic_ns();
            // What is due by now goes out together: after a stall, or to a client that reads too slowly.
            loop {
                local.events.word(&mut self.out, k);
                k += 1;
                if k == count || due(k).0 > now_ns || self.out.len() >= WRITE_BYTES {
                    break;
                }
            }
            if k == count {
                self.end(verdict);
            }
            self.unframe(0);
            self.send().await?;
            local.tally().events.add(k - first);
            let sent_ns = monotonic_ns();
            local.tally().late(sent_ns.saturating_sub(first_due_ns));
            for late in first + 1..k {
                due_ns = due(late).0.max(due_ns);
                local.tally().late(sent_ns.saturating_sub(due_ns));
            }
        }
        if count == 0 {
            self.end(verdict);
            self.unframe(0);
            self.send().await?;
        }
        if verdict.act == Act::Reset { Err(Over::Reset) } else { Ok(()) }
    }

    /// What follows the last content event.
    fn end(&mut self, verdict: &Verdict) {
        let local = self.local.clone();
        let options = &local.script.options;
        let tally = local.tally();
        match verdict.act {
            Act::Truncate => tally.truncations_injected.add(1),
            Act::Reset => tally.resets_injected.add(1),
            Act::StreamError => {
                tally.stream_errors_injected.add(1);
                local.events.error(&mut self.out);
            }
            Act::Answer | Act::Error => {
                let prompt = options.prompt_tokens.unwrap_or(answer::prompt_tokens(self.line.body_bytes));
                local.events.end(&mut self.out, options.tokens, prompt);
            }
        }
    }

    /// Takes the chunk lines out of the output from an index on, for a client of HTTP/1.0.
    fn unframe(&mut self, from: usize) {
        if self.head.http10 {
            let plain = answer::unframed(&self.out[from..]);
            self.out.truncate(from);
            self.out.extend_from_slice(&plain);
        }
    }

    fn log(&mut self, status: u16) {
        if let Some(log) = self.local.log.borrow_mut().as_mut() {
            let line = Line { answered_ns: monotonic_ns(), connection: self.number, status, ..self.line };
            log.line(&line, self.local.tally());
        }
    }

    async fn refuse(&mut self, why: Bad) {
        self.local.tally().bad_requests.add(1);
        answer::json(&mut self.out, why.status, &answer::error_body(why.status, why.what), After::Close);
        if self.send().await.is_ok() {
            self.linger().await;
        }
    }

    /// Ends the sending side and drops input until the client ends too, so that the answer is not lost to a reset.
    async fn linger(&mut self) {
        self.stream.shutdown(Shutdown::Write);
        let until_ns = monotonic_ns() + LINGER_NS;
        loop {
            self.input.clear();
            self.input_at = 0;
            if !matches!(self.read(Some(until_ns)).await, Ok(true)) {
                return;
            }
        }
    }
}

const EVENT_STREAM: &str = "text/event-stream";

/// A time of the monotonic clock, as a future; one a connection at a time.
struct Until {
    local: Rc<Local>,
    slot: u32,
    due_ns: u64,
    is_listed: bool,
}

impl Until {
    fn new(local: &Rc<Local>, slot: u32, due_ns: u64) -> Self {
        Self { local: local.clone(), slot, due_ns, is_listed: false }
    }
}

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now_ns = monotonic_ns();
        if self.due_ns <= now_ns {
            return Poll::Ready(());
        }
        if let Some(waker) = self.local.wakers.borrow_mut().get_mut(self.slot as usize) {
            *waker = Some(cx.waker().clone());
        }
        if !self.is_listed {
            self.is_listed = true;
            let local = self.local.clone();
            let mut timers = local.timers.borrow_mut();
            timers.push(self.due_ns, self.slot);
            let _ = timers.arm(now_ns);
        }
        Poll::Pending
    }
}
