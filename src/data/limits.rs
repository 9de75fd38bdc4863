//! Every bound of the program, with its reason. Related ones are held to each other at compile time.

/// Workers of one run. More cores than any machine that this is written for; sizes small tables.
pub const WORKERS_MAX: usize = 1024;
/// Connections of one worker: the connection id has 24 bits of a completion's `user_data`.
pub const CONNECTIONS_PER_WORKER_MAX: u32 = 1 << 20;
/// In-flight cap of an open loop without `-c`: enough to hide a stall of seconds at common rates, few enough that the local
/// ports (about 28,000 an address) and the usual file limits hold.
pub const OPEN_LOOP_CONNECTIONS: u32 = 16_384;
/// Ended requests from which on a share of failures (`--max-errors P%`) can end a run: fewer say little about a share.
pub const ERROR_SHARE_FLOOR: u64 = 100;
/// Source addresses of `--source-ip`: with 28,000 ports each, more connections than a machine holds.
pub const SOURCES_MAX: usize = 4096;
/// Files that the process needs beside its connections: rings, dataset, terminal, target listeners, epoll.
pub const FILES_RESERVED: u64 = 48;

/// A response head. Larger ones are class `headers_too_large`: what nginx, hyper and curl give up at is between 8 and 256 KiB.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;
/// Fields of a response head.
pub const RESPONSE_FIELDS_MAX: usize = 128;
/// Interim (1xx) responses before a final one; more is nonsense or an attack.
pub const INTERIM_RESPONSES_MAX: u32 = 64;
/// Trailer bytes of a chunked response.
pub const TRAILER_BYTES_MAX: u32 = 64 << 10;
/// A chunk-size line with its extension.
pub const CHUNK_LINE_BYTES_MAX: u32 = 4 << 10;
/// One event of a stream that is still looked into; a longer one counts, unread, as content.
pub const EVENT_BYTES_MAX: u64 = 64 << 20;

/// A request head: method, target, all fields. What servers accept is 8 to 32 KiB.
pub const REQUEST_HEAD_BYTES_MAX: usize = 16 << 10;
/// The one body of `-b` or `-B`, which is held in memory.
pub const INLINE_BODY_BYTES_MAX: u64 = 1 << 30;
/// Spans in one scatter-gather send: one more than this asks for a second send of the same request. The kernel's own bound
/// (UIO_MAXIOV) is 1,024; 64 keeps a connection's vector table at 1 KiB.
pub const SPANS_PER_SEND_MAX: usize = 64;
/// Bytes in one send. The kernel refuses to move 2 GiB or more at once.
pub const SEND_BYTES_MAX: u64 = 1 << 30;
/// Below this a body is copied behind its head into one contiguous buffer: measured (512 B: 623k requests/s contiguous,
/// 513k vectored; equal at 1 to 4 KiB).
pub const COPY_BYTES_MAX: usize = 2 << 10;
/// Plaintext of a request that is encrypted in one go over TLS: two whole records. A connection's send area and rustls' own
/// buffer hold one such piece each, whatever the size of the body.
pub const TLS_PIECE_BYTES: usize = 32 << 10;
/// Room for one encrypted piece in a send area, the records' headers and tags included, and for a handshake message or a
/// post-handshake answer before it. What does not fit waits for the next send.
pub const TLS_AREA_BYTES: usize = TLS_PIECE_BYTES + (1 << 10);
/// Plaintext read from rustls in one go: one whole record.
pub const TLS_READ_BYTES: usize = 16 << 10;

/// What is known to be in memory is known by stretches of so many bytes of the data file: a body that is fetched by itself reads
/// little more than it needs, and a terabyte has 4 MiB of bits.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Bytes of a body that are fetched from the disk in one go; a larger one is fetched in several.
pub const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Bodies of one worker that the kernel reads from the disk side by side: each keeps a kernel thread, and more than this do not
/// make a disk faster.
pub const FETCHES_AT_ONCE: u32 = 16;
/// How far ahead of the workers the data file is read, bytes over all workers and records of each.
pub const AHEAD_BYTES: u64 = 64 << 20;
/// See [`AHEAD_BYTES`].
pub const AHEAD_RECORDS: usize = 512;

/// Completions copied out of the ring before they are dispatched.
pub const COMPLETIONS_PER_TURN: usize = 256;
/// Requests started in one turn of the loop: keeps the time between two looks at the completions bounded.
pub const STARTS_PER_TURN: u32 = 256;
/// Longest wait in the kernel: how soon a worker sees an interrupt.
pub const WAIT_MAX_NS: u64 = 50_000_000;
/// Connects under way at once before the clock starts: half of the smallest listen backlog that is common (128).
pub const CONNECTS_AT_ONCE: u32 = 64;
/// A kept connection is not used in the last part of the time that its server keeps it (`Keep-Alive: timeout=`): a quarter of it,
/// at most so long. A request that is on its way when the server closes is lost.
pub const KEEP_ALIVE_MARGIN_NS: u64 = 500_000_000;
/// How long a connection that was shut down waits for its peer's acknowledgement before it is aborted: more than a round trip
/// of any network, little beside a run.
pub const CLOSE_WAIT_NS: u64 = 1_000_000_000;
/// Size of one receive buffer of the provided ring: holds nearly every JSON answer and several stream events.
pub const RECV_BUFFER_BYTES: usize = 4 << 10;
/// Receive buffers of one worker, at least and at most. Measured: 32 for 1,000 connections cost twice the CPU a request.
pub const RECV_BUFFERS_MIN: u32 = 1024;
/// See [`RECV_BUFFERS_MIN`]. They are used in turn, so each is memory that is touched: two a connection made 10,000 connections
/// take 80 MiB and, out of the caches, twice the CPU a request.
pub const RECV_BUFFERS_MAX: u32 = 2_048;
/// Entries of a submission queue, at most.
pub const SQ_ENTRIES_MAX: u32 = 16_384;
/// Entries of a completion queue, at most.
pub const CQ_ENTRIES_MAX: u32 = 65_536;

/// Slices of the timeline at one a second: four and a half hours, after which slices double in width.
pub const TIMELINE_ROWS: usize = 16_384;
/// Samples kept of each error class and worker.
pub const SAMPLES_PER_CLASS: u32 = 3;
/// First and last bytes kept of a response for an error sample.
pub const SAMPLE_BYTES: usize = 256;

/// Bytes kept of one response with `--keep-responses`: a stream of 64 Ki events of 256 bytes.
pub const KEPT_RESPONSE_BYTES_MAX: u64 = 16 << 20;
/// Content events of one stream whose times can be held at once, over all slots together: what the longest models put out.
pub const STAMPS_PER_SLOT: usize = 128 << 10;

/// Tokens of one prompt or output that a trace may ask for: more than any model takes, few enough that a body's size fits.
pub const TOKENS_MAX: u32 = 1 << 24;
/// Bytes of a dataset whose records hang on each other by name, so that all of it is held at once (`dag_jsonl`, `random_pool`).
pub const HELD_BYTES_MAX: u64 = 4 << 30;
/// Users of `--user-centric`, each of which every worker keeps eight bytes for.
pub const USERS_MAX: u32 = 10_000_000;
/// Bad records shown in full; the rest is a count.
pub const BAD_RECORDS_SHOWN: usize = 10;
/// Records of one dataset: record ids have 32 bits.
pub const RECORDS_MAX: u64 = u32::MAX as u64 - 1;
/// A unix socket path, without the terminating zero (`sockaddr_un`).
pub const UNIX_PATH_BYTES_MAX: usize = 107;

const _: () = assert!(WORKERS_MAX <= u16::MAX as usize);
const _: () = assert!(CONNECTIONS_PER_WORKER_MAX < 1 << 24);
const _: () = assert!(RECV_BUFFERS_MAX <= 1 << 15);
const _: () = assert!(CQ_ENTRIES_MAX >= SQ_ENTRIES_MAX);
const _: () = assert!(REQUEST_HEAD_BYTES_MAX < TLS_PIECE_BYTES && TLS_PIECE_BYTES < TLS_AREA_BYTES);
const _: () = assert!(FETCH_BYTES_MAX.is_multiple_of(CHUNK_BYTES) && FETCH_BYTES_MAX <= AHEAD_BYTES);
const _: () = assert!(SPANS_PER_SEND_MAX < 1024);
const _: () = assert!(SEND_BYTES_MAX < i32::MAX as u64);
