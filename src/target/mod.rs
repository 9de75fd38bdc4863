//! Layer 6: the built-in reference server, for `builtin:` and `ringload target`.
//!
//! It is what a client is calibrated against, so it must cost less than the client and say what it did: a thread a core, each
//! with its own listener (SO_REUSEPORT), nothing shared but a counter when faults are asked for. The plain modes are a
//! hand-written epoll loop ([`serve`], [`conn`]); event streams run on tokio-uring ([`stream`]). Requests are parsed strictly
//! ([`request`]): what is not HTTP/1.1 gets a 4xx or 5xx of the target's own and a close. No byte of a client can make it panic.
//!
//! The options are the same in a query (`builtin:?mode=sse&ttft=20ms`) and as arguments (`ringload target mode=sse ttft=20ms`):
//!
//! | option | value | default | does |
//! | --- | --- | --- | --- |
//! | `mode` | `null\|echo\|check\|chat\|sse` | `null` | fixed small JSON, the body back, compare length and XXH3-64, chat completion, event stream |
//! | `ttft`, `itl` | time | `20ms`, `5ms` | content event k of a stream is due at `whole request + ttft + k * itl` |
//! | `tokens` | count | `64` | content events of a stream, words of a completion |
//! | `prompt_tokens` | count | body bytes / 4 | `usage.prompt_tokens` |
//! | `delay` | time | `0` | think time before an answer |
//! | `jitter` | time | `0` | each answer or event is due up to this much later, evenly spread |
//! | `bytes` | size | 11 | length of the answer of `null`; from 32 KiB on sent from a file in memory without a copy |
//! | `status` | code | `200` | status of every answer |
//! | `error`, `reset`, `truncate`, `stream_error` | share | `0` | answers 500; resets; ends half way by a close; ends a stream half way in an error event |
//! | `close_every` | count | never | every N-th answer of a connection closes it |
//! | `idle_close` | time | never | closes a connection that was idle for so long |
//! | `stall` | `200ms@5s`, `1%:200ms` | none | one window in which nothing is answered; or a share of the requests waits longer |
//! | `slow_read` | size | off | request bytes read a second and connection |
//! | `seed` | number | `1` | of everything random; request n meets the same fate whatever the threads |
//! | `threads` | count | a core each | threads |
//! | `log` | file | none | a line a request ([`log`]) |
//!
//! `check` compares a body with `X-Ringload-Xxh3` (16 hexadecimal digits) and its length with `X-Ringload-Bytes` or
//! `Content-Length`; it answers 200 and `{"ok":true}`, or 422 and both sides; a request without a digest is answered 200 and
//! not counted as verified. A stream starts with its head and a role event at once, so that a client that takes the first
//! event for the first token shows; the finish reason, the usage and `[DONE]` come with the last content event.
//!
//! What the target says of its own lateness ([`TargetCounts`]) is from the due time to the moment when the kernel had taken
//! the bytes: a client that does not read makes events late, and that shows there too.
//!
//! Must not import: engine, report, cli.

mod answer;
mod conn;
pub mod log;
pub mod options;
mod request;
mod script;
mod serve;
mod stream;
mod tally;
mod timers;

use std::{
    fmt, fs,
    net::{SocketAddr, ToSocketAddrs},
    os::{fd::OwnedFd, unix::fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

use nix::{
    errno::Errno,
    sched::{CpuSet, sched_setaffinity},
    sys::{
        eventfd::{EfdFlags, EventFd},
        resource::{UsageWho, getrusage},
        time::TimeValLike,
    },
    unistd::{Pid, gettid},
};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::data::{Error, Result, limits::UNIX_PATH_BYTES_MAX, results::TargetCounts, units::MICROSECOND};

pub use options::{KEYS, Mode, Options, help};

use {script::Script, tally::Tally};

/// Connections that may wait to be accepted, by thread; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Receive buffer of a socket that is read slowly: a large one would swallow what is meant to wait.
const SLOW_RECEIVE_BUFFER_BYTES: usize = 16 << 10;

/// Where a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A unix socket by path; `@name` is in the abstract name space.
    Unix(PathBuf),
}

impl Listen {
    /// From `127.0.0.1:8080`, `[::1]:0`, `localhost:8080`, `:8080` (every address), `unix:/path` or `unix:@name`.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path == "@" {
                return Err(Error::usage(format!("--listen {text} has no path, expected unix:/path or unix:@name")));
            }
            if path.len() > UNIX_PATH_BYTES_MAX {
                let bytes = path.len();
                return Err(Error::usage(format!(
                    "--listen {text}: the path has {bytes} bytes, expected at most {UNIX_PATH_BYTES_MAX}"
                )));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let text = text.strip_prefix("http://").unwrap_or(text);
        let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
        match full.to_socket_addrs().ok().and_then(|mut found| found.next()) {
            Some(address) => Ok(Self::Tcp(address)),
            None => Err(Error::usage(format!(
                "--listen {text} is no address, expected HOST:PORT, :PORT, unix:/path or unix:@name"
            ))),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A target at work. Dropped without [`Running::stop`] it stops as well.
#[derive(Debug)]
pub struct Running {
    address: Listen,
    threads: Vec<JoinHandle<()>>,
    /// Kernel ids of the threads, in thread order.
    pub thread_ids: Vec<i32>,
    tallies: Arc<[Tally]>,
    stop: EventFd,
}

/// Starts a target: `options.threads` threads, else one for each entry of `cores` and at least one; a thread is pinned to its
/// entry (in turn when there are more threads than cores), none leaves it to the scheduler. Returns when all listen.
pub fn start(listen: Listen, options: &Options, cores: &[Option<u32>]) -> Result<Running> {
    let count = options.threads.map_or(cores.len().max(1), |n| n as usize);
    let log = options.log.as_deref().map(log::create).transpose()?;
    let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|e| system("eventfd", e))?;
    let (listeners, address) = listeners(&listen, options, count)?;
    let tallies: Arc<[Tally]> = (0..count).map(|_| Tally::default()).collect();
    let script = Arc::new(Script::new(options.clone()));
    let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Owns what is started from here on, so that a failure half way stops it.
    let mut running = Running { address, threads: Vec::new(), thread_ids: Vec::new(), tallies, stop };
    let (told, ready) = mpsc::channel();
    for (index, listener) in listeners.into_iter().enumerate() {
        let work = Work {
            index,
            core: cores.get(index % cores.len().max(1)).copied().flatten(),
            listener,
            stop: duplicate(&running.stop)?,
            script: script.clone(),
            tallies: running.tallies.clone(),
            log: log.clone(),
            created_s,
        };
        let told = told.clone();
        let thread = std::thread::Builder::new()
            .name(format!("target-{index}"))
            .spawn(move || work.run(&told))
            .map_err(|e| environment("clone", &e, "raise the limit on threads (ulimit -u, cgroup pids.max)"))?;
        running.threads.push(thread);
    }
    drop(told);
    let mut ids = vec![0; count];
    for _ in 0..count {
        let (index, id) =
            ready.recv().map_err(|_| Error::Failed("a thread of the target ended at its start".into()))??;
        ids[index] = id;
    }
    running.thread_ids = ids;
    Ok(running)
}

/// What a thread of the target owns.
struct Work {
    index: usize,
    core: Option<u32>,
    listener: Socket,
    stop: OwnedFd,
    script: Arc<Script>,
    tallies: Arc<[Tally]>,
    log: Option<Arc<fs::File>>,
    created_s: u64,
}

type Told = mpsc::Sender<Result<(usize, i32)>>;

impl Work {
    fn run(self, told: &Told) {
        let Self { index, core, listener, stop, script, tallies, log, created_s } = self;
        if let Err(e) = core.map_or(Ok(()), pin) {
            let _ = told.send(Err(e));
            return;
        }
        let begun = |begun: Result<()>| {
            // Nobody waits any more when another thread failed to start.
            let _ = told.send(begun.map(|()| (index, gettid().as_raw())));
        };
        if script.options.mode == Mode::Sse {
            let tallies = tallies.clone();
            let thread = stream::Thread { index, listener, stop, script, tallies, log, created_s };
            match stream::Ready::new(thread) {
                Ok(ready) => {
                    ready.run(|up| begun(up.map_err(|e| environment("epoll_ctl", &e, "see \"ringload doctor\""))))
                }
                Err(e) => begun(Err(no_ring(&e))),
            }
        } else {
            let thread =
                serve::Thread { index, listener, stop, script: &script, tally: &tallies[index], log, created_s };
            match serve::Ready::new(thread) {
                Ok(ready) => {
                    begun(Ok(()));
                    ready.run();
                }
                Err(e) => begun(Err(system("epoll", e))),
            }
        }
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) {
            let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
            tallies[index].cpu_ns.set(us.unsigned_abs() * MICROSECOND);
        }
    }
}

impl Running {
    /// Where it listens, with the port that was taken.
    pub fn addr(&self) -> &Listen {
        &self.address
    }

    /// What it counted so far. The CPU of threads that still run is the scheduler's own figure.
    pub fn counts(&self) -> TargetCounts {
        let mut counts = tally::sum(self.tallies.iter());
        for (tally, id) in self.tallies.iter().zip(&self.thread_ids) {
            if tally.cpu_ns.value() == 0 {
                counts.cpu_ns += scheduled_ns(*id).unwrap_or(0);
            }
        }
        counts
    }

    /// Ends all threads, whatever their connections are at, and returns the last counts.
    pub fn stop(mut self) -> TargetCounts {
        self.end();
        tally::sum(self.tallies.iter())
    }

    fn end(&mut self) {
        // Cannot fail short of 2^64 - 1 stops.
        let _ = self.stop.write(1);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Listen::Unix(path) = &self.address
            && abstract_name(path).is_none()
        {
            let _ = fs::remove_file(path);
        }
        // Nothing is removed twice: another server may own the path by then.
        self.address = Listen::Unix(PathBuf::from("@"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end();
        }
    }
}

/// CPU time of a live thread by `/proc/self/task/ID/schedstat`, nanoseconds.
fn scheduled_ns(id: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn pin(core: u32) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core as usize).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|e| Error::Environment {
        call: "sched_setaffinity",
        what: format!("core {core}: {e}"),
        cure: "choose cores of the allowed mask, see \"ringload doctor\"".into(),
    })
}

/// One listener a thread. Only the first may find the address taken; a port of 0 is chosen by the first for all.
fn listeners(listen: &Listen, options: &Options, count: usize) -> Result<(Vec<Socket>, Listen)> {
    match listen {
        Listen::Tcp(address) => tcp_listeners(*address, options, count).map_err(|e| cannot_listen(listen, &e)),
        Listen::Unix(path) => {
            let socket = unix_listener(path).map_err(|e| cannot_listen(listen, &e))?;
            let mut all = Vec::new();
            for _ in 1..count {
                all.push(
                    socket.try_clone().map_err(|e| environment("fcntl", &e, "raise the limit on files (ulimit -n)"))?,
                );
            }
            all.push(socket);
            Ok((all, listen.clone()))
        }
    }
}

fn tcp_listeners(address: SocketAddr, options: &Options, count: usize) -> std::io::Result<(Vec<Socket>, Listen)> {
    if count > 1 && address.port() != 0 {
        // With SO_REUSEPORT a second server of the same user would silently get a share of the connections: a plain socket
        // finds out first.
        tcp_socket(address)?.bind(&address.into())?;
    }
    let mut all = Vec::new();
    let mut address = address;
    for _ in 0..count {
        let socket = tcp_socket(address)?;
        if count > 1 {
            socket.set_reuse_port(true)?;
        }
        if options.slow_read > 0 {
            socket.set_recv_buffer_size(SLOW_RECEIVE_BUFFER_BYTES)?;
        }
        socket.bind(&address.into())?;
        address = socket.local_addr()?.as_socket().unwrap_or(address);
        all.push(socket);
    }
    // None listens before all are bound: a first listener alone would take every connection of an early client.
    for socket in &all {
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
    }
    Ok((all, Listen::Tcp(address)))
}

fn tcp_socket(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Connections of an earlier server in TIME_WAIT do not keep the port.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn unix_listener(path: &Path) -> std::io::Result<Socket> {
    let address = match abstract_name(path) {
        Some(name) => SockAddr::unix(format!("\0{name}"))?,
        None => SockAddr::unix(path)?,
    };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    if let Err(e) = socket.bind(&address) {
        // Only a socket that nobody listens on is removed: whatever else lies there is the user's.
        let is_socket = || fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        let is_stale = e.kind() == std::io::ErrorKind::AddrInUse
            && abstract_name(path).is_none()
            && is_socket()
            && nobody_listens(&address);
        if !is_stale {
            return Err(e);
        }
        fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// True for a socket file that a dead server left behind.
fn nobody_listens(address: &SockAddr) -> bool {
    let Ok(probe) = Socket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    matches!(probe.connect(address), Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn abstract_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix('@')
}

fn duplicate(fd: &EventFd) -> Result<OwnedFd> {
    use std::os::fd::AsFd;
    fd.as_fd().try_clone_to_owned().map_err(|e| environment("fcntl", &e, "raise the limit on files (ulimit -n)"))
}

fn cannot_listen(listen: &Listen, e: &std::io::Error) -> Error {
    let cure = match e.kind() {
        std::io::ErrorKind::AddrInUse => "another server has it: choose another --listen, or port 0",
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 and foreign folders need a privilege: choose another --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        _ => "choose another --listen",
    };
    Error::Environment { call: "bind", what: format!("{listen}: {e}"), cure: cure.into() }
}

/// Streams need io_uring; the other modes do not.
fn no_ring(e: &std::io::Error) -> Error {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let cure = match disabled.trim() {
        "1" | "2" => format!("disabled by kernel.io_uring_disabled={}; see \"ringload doctor\"", disabled.trim()),
        _ => "mode=sse needs io_uring, which seccomp or the kernel refuses here; see \"ringload doctor\"".to_owned(),
    };
    environment("io_uring_setup", e, &cure)
}

fn system(call: &'static str, e: Errno) -> Error {
    environment(call, &e.into(), "see \"ringload doctor\"")
}

fn environment(call: &'static str, e: &std::io::Error, cure: &str) -> Error {
    Error::Environment { call, what: e.to_string(), cure: cure.into() }
}
