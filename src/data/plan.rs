//! The plan of a run: everything that the flags, the config and the dataset decided, checked, with nothing left to look up.
//!
//! The command line builds it once; pace, engine and report read it.

use std::{net::SocketAddr, path::PathBuf};

use super::{ids::Nanos, metric::Metric, net::Net};

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As the user wrote it, for reports.
    pub url: String,
    /// Value of the `Host` field, bracketed and with the port when it is not the scheme's own.
    pub host: String,
    /// Path and query, at least `/`.
    pub path: String,
    /// Addresses to try, in order; the first that answers is kept.
    pub addresses: Vec<Address>,
    /// True for `https`.
    pub tls: bool,
    /// True when every address is this machine itself (loopback or a unix socket): zero-copy sends are copied there.
    pub local: bool,
}

/// One address of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket by path.
    UnixPath(PathBuf),
    /// A unix socket in the abstract name space, without the leading zero.
    UnixAbstract(Vec<u8>),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::UnixPath(path) => write!(f, "{}", path.display()),
            Self::UnixAbstract(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
        }
    }
}

/// The parts of every request head that the dataset does not bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// `-m`; none is POST with a body, else GET.
    pub method: Option<String>,
    /// `-H` fields in order: the last of a name wins, an empty value removes a default.
    pub headers: Vec<(String, String)>,
    /// `Authorization: Bearer ...` from the environment: never printed or stored.
    pub bearer: Option<Secret>,
    /// Adds `X-Ringload-Record` and `X-Ringload-Xxh3` with the number and the digest of each body, for a target that checks.
    pub body_digest: bool,
    /// Adds `Accept: text/event-stream` (`--stream sse`); else `Accept: */*`.
    pub accept_stream: bool,
}

/// A value that no report, log or debug print shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Arrival process of an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Evenly spaced.
    Constant,
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps with this shape: below 1 burstier than poisson, above 1 more even.
    Gamma(f64),
}

/// A piece of a rate or concurrency curve: linear from one value to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Length, nanoseconds.
    pub duration_ns: u64,
    /// Value at its start, a second (rate) or in flight (concurrency).
    pub from: f64,
    /// Value at its end.
    pub to: f64,
}

/// When requests are due.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// The next as soon as a slot is free.
    Closed,
    /// At times of an arrival process whose rate follows a curve; the last segment goes on for ever.
    Rate {
        /// Gaps.
        arrival: Arrival,
        /// At least one segment; a plain rate is one with `from == to`.
        curve: Vec<Segment>,
    },
    /// At the dataset's own times.
    Schedule {
        /// Times are divided by this.
        speedup: f64,
        /// First offset that is played, nanoseconds of the trace, included; due at once.
        from_ns: u64,
        /// Last offset that is played, nanoseconds of the trace, included.
        to_ns: u64,
        /// Idle gaps longer than this are shortened to it, nanoseconds of the trace.
        max_gap_ns: u64,
    },
    /// So many users, each of whom sends a turn every `users / rps` seconds; whose session is over is followed by a new one.
    /// The users together send `rps` turns a second, evenly spaced.
    Users {
        /// At least 1.
        users: u32,
        /// Turns a second over all users.
        rps: f64,
    },
}

/// Requests that the client breaks off on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cancel {
    /// Which share of the measured requests, above 0 and at most 1; chosen by seed and running number.
    pub share: f64,
    /// How long after the last byte of the request was taken by the kernel, nanoseconds.
    pub after_ns: u64,
}

/// What happens to a request that is overdue when a slot is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// It is sent late, and timed from its due time.
    On,
    /// It is counted as missed.
    Off,
}

/// Order of the records in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As in the dataset.
    Sequential,
    /// A new permutation each pass.
    Shuffle,
    /// Drawn with replacement.
    Random,
}

/// What ends a run; whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// After so many issued requests (`-n`).
    pub requests: Option<u64>,
    /// After so long (`-d`), nanoseconds.
    pub duration_ns: Option<u64>,
    /// After so many sessions were begun (`--sessions`); their later turns still follow.
    pub sessions: Option<u64>,
    /// After so many passes over the dataset.
    pub passes: Option<u64>,
    /// Longest wait for those in flight, nanoseconds.
    pub drain_ns: u64,
    /// Ends the run when so many failed.
    pub max_errors: Option<MaxErrors>,
}

/// `--max-errors`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MaxErrors {
    /// So many failures.
    Count(u64),
    /// So many percent of the ended: once [`super::limits::ERROR_SHARE_FLOOR`] have ended, as soon as no end of the run can bring
    /// the share below it, and at the end.
    Percent(f64),
}

/// Requests left out of every figure at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmup {
    /// None.
    None,
    /// Those issued within this time, nanoseconds.
    Time(u64),
    /// The first so many.
    Requests(u64),
}

/// Time-outs in nanoseconds; `u64::MAX` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP connect and TLS handshake.
    pub connect_ns: u64,
    /// From the start to the first response byte.
    pub first_byte_ns: u64,
    /// Between two reads of a response.
    pub idle_ns: u64,
    /// From the start to the end.
    pub request_ns: u64,
}

/// Connection reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// As long as both sides allow.
    KeepAlive,
    /// A connection a request.
    Never,
    /// A connection a session.
    Session,
}

/// `--send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPath {
    /// By size and peer.
    Auto,
    /// Always by copy.
    Copy,
    /// Always zero-copy from the map, where the socket can.
    ZeroCopy,
    /// Always by `sendfile(2)`, where there is a file and no TLS.
    File,
}

/// `--stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMode {
    /// By the response's content type.
    Auto,
    /// Always.
    Sse,
    /// Never.
    Off,
}

/// How a worker waits for the next due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// In the kernel.
    Sleep,
    /// In the kernel until shortly before, then spinning; only for a worker with a core of its own.
    Hybrid,
    /// Spinning.
    Spin,
}

/// Lowest TLS version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// How targets over TLS are asked, and what they are held to. No file is read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `-k`: no certificate is checked.
    pub insecure: bool,
    /// `--cacert`: a PEM file of authorities that are trusted beside the system's.
    pub authorities: Option<PathBuf>,
    /// `--cert`: a PEM file with the client's certificate chain.
    pub certificate: Option<PathBuf>,
    /// `--key`: a PEM file with its key; none when the certificate's file has it.
    pub key: Option<PathBuf>,
    /// `--tls-min`.
    pub version_min: TlsVersion,
    /// `--tls-resume on`: later connections to a target take up its session, each worker its own.
    pub resume: bool,
    /// One a target, in their order: the name, or the IP literal, that the certificate must be for. A name is sent as SNI.
    /// Not looked at where the target is without TLS.
    pub names: Vec<String>,
}

/// One limit of `--goodput`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoodputLimit {
    /// A metric with one sample a request.
    pub metric: Metric,
    /// The highest recorded value that is still good.
    pub limit: u64,
}

/// The whole plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the phase that it is the plan of; none for a run of one.
    pub phase: Option<String>,
    /// At least one.
    pub targets: Vec<Target>,
    /// Head parts.
    pub head: RequestHead,
    /// When requests are due.
    pub shape: Shape,
    /// `--catch-up`.
    pub catch_up: CatchUp,
    /// Requests in flight over all workers, at most.
    pub concurrency: u32,
    /// True when the user gave `-c` (the text report names a cap that was not asked for).
    pub concurrency_asked: bool,
    /// How that bound of a closed loop changes from the start on, in flight over all workers; empty when it does not. Its
    /// highest value is `concurrency`.
    pub ramp: Vec<Segment>,
    /// Requests without a first token over all workers, at most (`--prefill-concurrency`).
    pub prefill: Option<u32>,
    /// `--cancel-rate`.
    pub cancel: Option<Cancel>,
    /// Sockets over all workers, at most.
    pub connections: u32,
    /// What ends it.
    pub stop: Stop,
    /// Warm-up.
    pub warmup: Warmup,
    /// Order of records.
    pub order: Order,
    /// Seed of everything random; printed.
    pub seed: u64,
    /// Time-outs.
    pub timeouts: Timeouts,
    /// Reuse.
    pub reuse: Reuse,
    /// Body send path.
    pub send: SendPath,
    /// Response reading.
    pub stream: StreamMode,
    /// Accepts a stream that ends without `[DONE]` or a finish reason.
    pub stream_end_any: bool,
    /// Waiting.
    pub pace: Pace,
    /// One entry a worker: the core to pin to, none to leave it to the scheduler.
    pub cores: Vec<Option<u32>>,
    /// Goodput limits; empty for none.
    pub goodput: Vec<GoodputLimit>,
    /// Opens connections before the clock starts.
    pub preconnect: bool,
    /// Delays of later turns are ignored.
    pub ignore_delays: bool,
    /// Delays of later turns are capped, nanoseconds.
    pub delay_cap_ns: u64,
    /// A failed turn ends its session.
    pub stop_session_on_failure: bool,
    /// TLS, for the targets that have it.
    pub tls: Tls,
    /// How connections are made.
    pub net: Net,
}

impl Plan {
    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.cores.len()
    }

    /// Exact share of a total for one worker: shares differ by at most one and add up.
    pub const fn share(total: u64, worker: usize, workers: usize) -> u64 {
        let (worker, workers) = (worker as u64, workers as u64);
        total / workers + if worker < total % workers { 1 } else { 0 }
    }

    /// The stop time of `-d` after a start, none without one.
    pub fn stop_at(&self, start: Nanos) -> Nanos {
        self.stop.duration_ns.map_or(Nanos::NONE, |d| start.plus(d))
    }
}

#[cfg(test)]
impl Plan {
    /// A closed loop of one slot on one unpinned worker, without an end.
    pub fn for_tests() -> Self {
        Self {
            phase: None,
            targets: Vec::new(),
            head: RequestHead::default(),
            shape: Shape::Closed,
            catch_up: CatchUp::On,
            concurrency: 1,
            concurrency_asked: true,
            ramp: Vec::new(),
            prefill: None,
            cancel: None,
            connections: 1,
            stop: Stop {
                requests: None,
                duration_ns: None,
                sessions: None,
                passes: None,
                drain_ns: 0,
                max_errors: None,
            },
            warmup: Warmup::None,
            order: Order::Sequential,
            seed: 1,
            timeouts: Timeouts {
                connect_ns: u64::MAX,
                first_byte_ns: u64::MAX,
                idle_ns: u64::MAX,
                request_ns: u64::MAX,
            },
            reuse: Reuse::KeepAlive,
            send: SendPath::Auto,
            stream: StreamMode::Auto,
            stream_end_any: false,
            pace: Pace::Sleep,
            cores: vec![None],
            goodput: Vec::new(),
            preconnect: true,
            ignore_delays: false,
            delay_cap_ns: u64::MAX,
            stop_session_on_failure: true,
            tls: Tls::default(),
            net: Net::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_for_any_count_of_workers() {
        for workers in 1..9usize {
            for total in 0..50u64 {
                let shares: Vec<_> = (0..workers).map(|w| Plan::share(total, w, workers)).collect();
                assert_eq!(shares.iter().sum::<u64>(), total);
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn a_secret_is_never_debug_printed() {
        assert!(
            !format!("{:?}", RequestHead { bearer: Some(Secret("tok".into())), ..Default::default() }).contains("tok")
        );
    }
}
