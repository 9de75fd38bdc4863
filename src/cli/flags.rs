//! The flags of every command: one list, from which parsing, help, man page and completions come. Parsing touches nothing
//! outside; what a value means for a run is decided in `plan`.
//!
//! This file is long because it is a list.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use super::{bodies::BodyFlags, net::NetFlags, tls::TlsFlags};
use crate::data::units;

/// Replays stored request bodies over HTTP/1.1, as fast or as exactly on time as this machine can, and reports what happened.
#[derive(Debug, Parser)]
#[command(name = "ringload", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay a dataset (or one body, or plain GETs) against URLs
    Run(Box<RunFlags>),
    /// Build the cache entry of a dataset; nothing is sent
    Build(Box<BuildFlags>),
    /// Show what is stored: counts, sizes, one record, its exact bytes
    Inspect(Box<InspectFlags>),
    /// Look after the cache directory
    Cache(CacheFlags),
    /// Run the built-in reference server
    Target(TargetFlags),
    /// Measure what one core of this machine reaches against the built-in target, by body size
    Calibrate(CalibrateFlags),
    /// Print finished runs again, or compare them
    Report(ReportFlags),
    /// Make one run out of the shards of a distributed run
    Merge(MergeFlags),
    /// Write request bodies out again from the cache: those of a run, an entry or a dataset
    ExportRequests(Box<ExportFlags>),
    /// Tell what the kernel, the limits and the cores here allow, and how to fix what they do not
    Doctor(DoctorFlags),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunFlags {
    /// http://host[:port]/path, https://..., unix:/path/to.sock:/http/path, or builtin:[?mode=...] for the reference server
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub source: SourceFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub load: LoadFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub request: RequestFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tls: TlsFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub net: NetFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shaping: ShapingFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cache: CacheUseFlags,
    /// TOML file with the same names as the long flags; flags win over it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Run")]
    pub config: Option<PathBuf>,
}

/// What is sent.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is sent")]
pub struct SourceFlags {
    /// Dataset to replay: a file, a directory, or - for a pipe
    #[arg(short = 'f', long = "dataset", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub dataset: Option<PathBuf>,
    /// One body, sent again and again
    #[arg(short = 'b', long, value_name = "TEXT", conflicts_with_all = ["dataset", "body_file"])]
    pub body: Option<String>,
    /// One body out of a file, sent again and again
    #[arg(short = 'B', long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "dataset")]
    pub body_file: Option<PathBuf>,
    /// Order of the records; a pass sends each exactly once, whatever the threads (random: drawn with replacement)
    /// [default: sequential]
    #[arg(long, value_name = "ORDER")]
    pub order: Option<OrderFlag>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Times through the dataset, or forever [default: forever with -d or -n, else 1]
    #[arg(long, value_name = "N|forever")]
    pub repeat: Option<Repeat>,
}

/// How the load is shaped.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadFlags {
    /// Requests in flight over all workers, at most [default: 64; unlimited with -R or --schedule]
    #[arg(short = 'c', long, value_name = "N", value_parser = units::parse_positive_count)]
    pub concurrency: Option<u64>,
    /// Sockets over all workers [default: the concurrency]
    #[arg(long, value_name = "N", value_parser = units::parse_positive_count)]
    pub connections: Option<u64>,
    /// Workers, one ring and one pinned core each [default: every allowed core but those kept for builtin:]
    #[arg(short = 't', long, value_name = "N", value_parser = units::parse_positive_count)]
    pub threads: Option<u64>,
    /// Cores to pin to, as 0-3,8 [default: the allowed ones, physical cores first]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// Leave placement to the scheduler
    #[arg(long, conflicts_with = "cores")]
    pub no_pin: bool,
    /// Stop issuing after this time [default: 10s without -n, -f and --repeat]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = units::parse_positive_duration)]
    pub duration: Option<u64>,
    /// Stop after so many issued requests (10k, 1m)
    #[arg(short = 'n', long, value_name = "N", value_parser = units::parse_positive_count)]
    pub requests: Option<u64>,
    /// Open loop at this rate a second over all workers (0.5, 3k, 50/s)
    #[arg(short = 'R', long, value_name = "RPS", value_parser = units::parse_rate, conflicts_with = "schedule")]
    pub rate: Option<f64>,
    /// Arrival process of a rate: constant, poisson or gamma:SHAPE [default: constant]
    #[arg(long, value_name = "PROCESS", value_parser = parse_arrival)]
    pub arrival: Option<crate::data::plan::Arrival>,
    /// Open loop at the dataset's own times
    #[arg(long)]
    pub schedule: bool,
    /// Play the schedule so many times faster [default: 1]
    #[arg(long, value_name = "X", value_parser = parse_factor)]
    pub speedup: Option<f64>,
    /// Play only from this offset of the schedule on, included
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, requires = "schedule")]
    pub from: Option<u64>,
    /// Play only to this offset of the schedule, included
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, requires = "schedule")]
    pub to: Option<u64>,
    /// Shorten idle gaps of the schedule to this
    #[arg(long, value_name = "TIME", value_parser = units::parse_positive_duration, requires = "schedule")]
    pub max_gap: Option<u64>,
    /// Later turns of a session do not wait for their delay
    #[arg(long)]
    pub ignore_delays: bool,
    /// Longest delay of a later turn
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub delay_cap: Option<u64>,
    /// What a failed turn does to its session [default: stop]
    #[arg(long, value_name = "WHAT")]
    pub on_failed_turn: Option<OnFailedTurn>,
    /// Stop after so many begun sessions; their later turns still follow
    #[arg(long, value_name = "N", value_parser = units::parse_positive_count)]
    pub sessions: Option<u64>,
    /// So many users, of whom each sends a turn every USERS / RPS seconds, one session after the other
    #[arg(long, value_name = "USERS", value_parser = units::parse_positive_count, requires = "rate",
        conflicts_with_all = ["schedule", "stages", "rate_series", "ramp_up"])]
    pub user_centric: Option<u64>,
    /// Requests without a first token over all workers, at most
    #[arg(long, value_name = "N", value_parser = units::parse_positive_count)]
    pub prefill_concurrency: Option<u64>,
    /// Break so many of the requests off, each chosen by the seed; they are `cut` and `cancelled`, and no errors
    #[arg(long, value_name = "P%", value_parser = parse_cancel_rate)]
    pub cancel_rate: Option<f64>,
    /// How long after a request is sent it is broken off [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub cancel_after: Option<u64>,
    /// After a stall: send the overdue, or count them as missed [default: on]
    #[arg(long, value_name = "WHAT")]
    pub catch_up: Option<OnOff>,
    /// Reach the full rate or concurrency linearly over this time
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub ramp_up: Option<u64>,
    /// Stages of a rate TIME:RPS, as 10s:100,30s:1k, or of the requests in flight, TIME:cN, as 10s:c8,30s:c64
    #[arg(long, value_name = "LIST", value_parser = parse_stages, conflicts_with_all = ["rate", "schedule", "ramp_up"])]
    pub stages: Option<Stages>,
    /// Rates over time out of a file: JSON points {time_s, qps} or lines SECONDS,RATE; straight lines between them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        conflicts_with_all = ["rate", "schedule", "ramp_up", "stages"])]
    pub rate_series: Option<PathBuf>,
    /// Time or number of requests at the start that are left out of every figure
    #[arg(long, value_name = "TIME|N", value_parser = parse_warmup)]
    pub warmup: Option<crate::data::plan::Warmup>,
    /// Longest wait for those in flight after the stop; then they are cut
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::parse_duration)]
    pub drain: u64,
    /// End the run when so many failed, or such a share: once 100 have ended, or when -n cannot bring it below any more
    #[arg(long, value_name = "N|P%", value_parser = parse_max_errors)]
    pub max_errors: Option<crate::data::plan::MaxErrors>,
    /// How a worker waits for the next due time: hybrid spins for the last 50 us
    /// [default: hybrid]
    #[arg(long, value_name = "HOW")]
    pub pace: Option<PaceFlag>,
    /// Show the plan and send nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// How requests look and what is waited for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Request")]
pub struct RequestFlags {
    /// Method [default: POST with a body, else GET]
    #[arg(short = 'm', long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Header field; the last of a name wins, 'K:' removes a default one
    #[arg(short = 'H', long = "header", value_name = "K: V", action = clap::ArgAction::Append)]
    pub headers: Vec<String>,
    /// Path and query in place of the URL's
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// Host field in place of the URL's
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Authorization: Bearer with the value of this environment variable, which is never printed or stored
    #[arg(long, value_name = "VAR")]
    pub bearer_env: Option<String>,
    /// Send the number and the digest of each body in X-Ringload-* fields, for a target that checks them
    #[arg(long)]
    pub body_digest: bool,
    /// Whole request
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::parse_positive_duration)]
    pub timeout: u64,
    /// Connect and TLS handshake
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_positive_duration)]
    pub connect_timeout: u64,
    /// First response byte [default: none]
    #[arg(long, value_name = "TIME", value_parser = units::parse_positive_duration)]
    pub first_byte_timeout: Option<u64>,
    /// Gap between bytes of a response [default: none]
    #[arg(long, value_name = "TIME", value_parser = units::parse_positive_duration)]
    pub idle_timeout: Option<u64>,
    /// Connection reuse
    #[arg(long, value_name = "HOW", default_value = "keep-alive")]
    pub reuse: ReuseFlag,
    /// Read responses as event streams; auto goes by their content type
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub stream: StreamFlag,
    /// How a stream must end: done wants [DONE] or a finish reason
    #[arg(long, value_name = "HOW", default_value = "done")]
    pub stream_end: StreamEnd,
    /// How bodies are sent
    #[arg(long, value_name = "PATH", default_value = "auto")]
    pub send: SendFlag,
}

/// What is printed and kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Exit with 99 when this holds, as 'request_latency.p99>200ms' or 'error_rate>0.1%' (repeatable)
    #[arg(long, value_name = "EXPR", action = clap::ArgAction::Append)]
    pub fail_if: Vec<String>,
    /// Count the requests that meet all these limits, as 'ttft:200ms itl:50ms'
    #[arg(long, value_name = "LIMITS")]
    pub goodput: Option<String>,
    /// Percentiles to show, as 50,90,99.9
    #[arg(long, value_name = "LIST")]
    pub percentiles: Option<String>,
    /// Write the run directory here
    #[arg(short = 'o', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Write the run directory to runs/<time>-<id>
    #[arg(long, conflicts_with = "out")]
    pub save: bool,
    /// Run it so many times; with -o each into a numbered folder, so that `report --compare` can give intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// One row a request in the run directory [default: off; parquet with -o]
    #[arg(long, value_name = "HOW")]
    pub records: Option<RecordsFlag>,
    /// Keep the time of every content event of a stream in the records
    #[arg(long)]
    pub chunk_times: bool,
    /// Keep the bodies of the first N responses, or of all, in responses.jsonl
    #[arg(long, value_name = "N|all", value_parser = parse_how_many)]
    pub keep_responses: Option<u64>,
    /// Count the output tokens of kept responses (of all, without --keep-responses) whose server gave no usage, after the run,
    /// by --tokenizer
    #[arg(long)]
    pub tokenize_after: bool,
    /// Every figure also in slices of this length, in slices.json and slices.csv
    #[arg(long, value_name = "TIME", value_parser = units::parse_positive_duration)]
    pub slice: Option<u64>,
    /// Also write AIPerf's profile_export.jsonl and profile_export_aiperf.json and .csv, and with --slice its time slices
    #[arg(long)]
    pub aiperf_artifacts: bool,
    /// With them the bodies, as inputs.json
    #[arg(long, requires = "aiperf_artifacts")]
    pub aiperf_inputs: bool,
    /// What `ringload calibrate` kept, for the share of this machine's ceiling
    /// [default: $XDG_STATE_HOME/ringload/calibration.json]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub calibration: Option<PathBuf>,
    /// What goes to stdout at the end [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub format_out: Option<FormatOut>,
    /// The same as --format-out json
    #[arg(long)]
    pub json: bool,
    /// No progress line
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// How the dataset is read and turned into bodies. What of this matters for a format is part of its cache key.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Dataset")]
pub struct ShapingFlags {
    /// Format of the dataset, or auto
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub format: String,
    /// Only the first N records
    #[arg(long, value_name = "N", value_parser = units::parse_positive_count)]
    pub limit: Option<u64>,
    /// Leave bad records out and count them
    #[arg(long)]
    pub skip_bad: bool,
    /// Each line is a body, JSON or not
    #[arg(long)]
    pub verbatim_lines: bool,
    /// How equal stretches are stored
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub dedup: DedupFlag,
    /// Where body bytes are kept: in the cache, or only in the dataset's own file (for what is too large to copy)
    #[arg(long, value_name = "WHERE", default_value = "copy")]
    pub store: StoreFlag,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub bodies: BodyFlags,
}

/// How the cache is used.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheUseFlags {
    /// Where entries live [default: $XDG_CACHE_HOME/ringload]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
    /// Build privately, keep nothing
    #[arg(long)]
    pub no_cache: bool,
    /// Check every stored body before use
    #[arg(long)]
    pub verify: bool,
    /// Longest wait for another builder of the same entry; then a private build
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::parse_duration)]
    pub lock_timeout: u64,
    /// Leave the entry's data compressed, for keeping or shipping; a run unpacks it before it maps it
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub compress: CompressFlag,
}

/// Flags of `build`.
#[derive(Debug, Args)]
pub struct BuildFlags {
    /// A file, a directory, or - for a pipe
    #[arg(value_name = "DATASET", value_hint = ValueHint::AnyPath)]
    pub dataset: PathBuf,
    /// Threads [default: every allowed core]
    #[arg(short = 't', long, value_name = "N", value_parser = units::parse_positive_count)]
    pub threads: Option<u64>,
    /// Seed of synthesized text
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shaping: ShapingFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cache: CacheUseFlags,
}

/// Flags of `inspect`.
#[derive(Debug, Args)]
pub struct InspectFlags {
    /// A cache entry (its key or folder), or a dataset
    #[arg(value_name = "ENTRY|DATASET", value_hint = ValueHint::AnyPath)]
    pub what: PathBuf,
    /// Show this record, from 0
    #[arg(long, value_name = "N")]
    pub record: Option<u64>,
    /// Write the record's body and nothing else
    #[arg(long, requires = "record")]
    pub body: bool,
    /// Print as JSON
    #[arg(long, conflicts_with = "body")]
    pub json: bool,
    /// Seed of synthesized text
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shaping: ShapingFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cache: CacheUseFlags,
}

/// Flags of `cache`.
#[derive(Debug, Args)]
pub struct CacheFlags {
    /// What to do
    #[command(subcommand)]
    pub verb: CacheVerb,
}

/// What `cache` does.
#[derive(Debug, Subcommand)]
pub enum CacheVerb {
    /// Show each entry with its size
    List(CacheDirFlags),
    /// Print the cache directory, or the folder of an entry
    Path {
        /// Key of an entry, or the beginning of one
        key: Option<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
    /// Check every byte of every entry, or of those named; exit 1 when one is bad
    Verify {
        /// Keys, or beginnings of keys
        keys: Vec<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
    /// Remove leftovers, and the entries used longest ago beyond the bounds
    Gc {
        /// Keep at most this much
        #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
        max_size: Option<u64>,
        /// Keep what was used within this time
        #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
        max_age: Option<u64>,
        /// Say what would go, and leave it
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
    /// Write an entry as one compressed file, for another machine
    Export {
        /// Key of the entry, or the beginning of it
        key: String,
        /// Where to, or - for standard output
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
    /// Take an exported entry in
    Import {
        /// The file, or - for standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
    /// Remove entries
    Rm {
        /// Keys, or beginnings of keys
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        dir: CacheDirFlags,
    },
}

/// Where a `cache` verb works, and how it prints.
#[derive(Debug, Args)]
pub struct CacheDirFlags {
    /// Where entries live [default: $XDG_CACHE_HOME/ringload]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `target`.
#[derive(Debug, Args)]
pub struct TargetFlags {
    /// Address to listen on, as 127.0.0.1:8080 or unix:/path
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Options of the server, as in builtin:?mode=sse&ttft=20ms (repeatable, or joined by &)
    #[arg(value_name = "KEY=VALUE")]
    pub options: Vec<String>,
    /// Cores to pin to, as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// Threads [default: one]
    #[arg(short = 't', long, value_name = "N", value_parser = units::parse_positive_count)]
    pub threads: Option<u64>,
    /// Print the counts as JSON at the end
    #[arg(long)]
    pub json: bool,
    /// End by itself after this time
    #[arg(short = 'd', long, value_name = "TIME", value_parser = units::parse_positive_duration)]
    pub duration: Option<u64>,
}

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportFlags {
    /// Run directories, or folders of repeats
    #[arg(required = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dirs: Vec<PathBuf>,
    /// Hold the runs against this one (or a folder of repeats), with intervals where both sides have repeats
    #[arg(long, value_name = "BASE", value_hint = ValueHint::DirPath)]
    pub compare: Option<PathBuf>,
    /// Exit with 99 when a figure is worse by more than this, as 3%
    #[arg(long, value_name = "P%", value_parser = parse_percent, requires = "compare")]
    pub max_regression: Option<f64>,
    /// Draw the run as one HTML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "compare")]
    pub html: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the statistics of all runs as one table
    #[arg(long, conflicts_with_all = ["json", "compare", "html"])]
    pub csv: bool,
}

/// Flags of `export-requests`.
#[derive(Debug, Args)]
pub struct ExportFlags {
    /// A run directory, a cache entry (its key or folder), or a dataset
    #[arg(value_name = "RUN|ENTRY|DATASET", value_hint = ValueHint::AnyPath)]
    pub what: PathBuf,
    /// Where to, or - for standard output
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = "-")]
    pub out: PathBuf,
    /// How: a body a line, or sessions with their payloads
    #[arg(long = "as", value_name = "SHAPE", default_value = "raw_payload")]
    pub shape: ExportShape,
    /// Only these records, from 0, as 0-9,12
    #[arg(long, value_name = "LIST")]
    pub records: Option<String>,
    /// Seed of synthesized text
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shaping: ShapingFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cache: CacheUseFlags,
}

/// `--as`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ExportShape {
    /// A body a line, byte for byte
    RawPayload,
    /// {"data":[{"session_id","payloads"}]}
    InputsJson,
}

fn parse_how_many(text: &str) -> Result<u64, String> {
    if text == "all" {
        return Ok(u64::MAX);
    }
    units::parse_positive_count(text).map_err(|e| format!("{e}, or all"))
}

/// Flags of `merge`.
#[derive(Debug, Args)]
pub struct MergeFlags {
    /// Run directories of the shards
    #[arg(required = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dirs: Vec<PathBuf>,
    /// Where the merged run goes
    #[arg(short = 'o', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Exit with 99 when this holds for the whole (repeatable)
    #[arg(long, value_name = "EXPR", action = clap::ArgAction::Append)]
    pub fail_if: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim().parse::<f64>() {
        Ok(p) if p.is_finite() && p >= 0.0 => Ok(p),
        _ => Err("expected a share such as 3%".into()),
    }
}

/// Flags of `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateFlags {
    /// Body sizes; 0 is a GET
    #[arg(long, value_name = "SIZES", default_value = "0,1KiB,16KiB,100KiB,1MiB")]
    pub sizes: String,
    /// Time of each cell
    #[arg(short = 'd', long, value_name = "TIME", default_value = "2s", value_parser = units::parse_positive_duration)]
    pub duration: u64,
    /// Cores to measure, one after the other, as 0-3,8 [default: the first allowed one]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// Where calibrations are kept [default: $XDG_STATE_HOME/ringload/calibration.json]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub calibration: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorFlags {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// `--repeat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// So many passes.
    Times(u64),
    /// Without an end.
    Forever,
}

impl std::str::FromStr for Repeat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "forever" {
            return Ok(Self::Forever);
        }
        units::parse_positive_count(text).map(Self::Times).map_err(|e| format!("{e}, or forever"))
    }
}

/// `--stages`.
#[derive(Clone, Debug, PartialEq)]
pub enum Stages {
    /// Of a rate, a second.
    Rate(Vec<crate::data::plan::Segment>),
    /// Of the requests in flight.
    Concurrency(Vec<crate::data::plan::Segment>),
}

fn parse_stages(text: &str) -> Result<Stages, String> {
    let mut segments = Vec::new();
    let mut in_flight = 0;
    for part in text.split(',') {
        let (time, value) = part
            .trim()
            .split_once(':')
            .ok_or("expected stages as TIME:RPS (10s:100,30s:1k) or TIME:cN (10s:c8,30s:c64)")?;
        let duration_ns = units::parse_positive_duration(time)?;
        let value = match value.trim() {
            "0" => 0.0,
            text => match text.strip_prefix('c') {
                Some(n) => {
                    in_flight += 1;
                    units::parse_positive_count(n)? as f64
                }
                None => units::parse_rate(text)?,
            },
        };
        segments.push(crate::data::plan::Segment { duration_ns, from: value, to: value });
    }
    match in_flight {
        0 => Ok(Stages::Rate(segments)),
        n if n == segments.len() => Ok(Stages::Concurrency(segments)),
        _ => Err("expected all stages as rates, or all as requests in flight (cN)".into()),
    }
}

fn parse_cancel_rate(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim().parse::<f64>() {
        Ok(p) if p > 0.0 && p <= 100.0 => Ok(p),
        _ => Err("expected a share above 0% and at most 100%, such as 10%".into()),
    }
}

fn parse_arrival(text: &str) -> Result<crate::data::plan::Arrival, String> {
    use crate::data::plan::Arrival;
    match text.split_once(':') {
        None if text == "constant" => Ok(Arrival::Constant),
        None if text == "poisson" => Ok(Arrival::Poisson),
        Some(("gamma", shape)) => match shape.parse::<f64>() {
            Ok(shape) if shape.is_finite() && shape > 0.0 => Ok(Arrival::Gamma(shape)),
            _ => Err("expected gamma:SHAPE with a shape above 0".into()),
        },
        _ => Err("expected constant, poisson or gamma:SHAPE".into()),
    }
}

fn parse_factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err("expected a factor above 0".into()),
    }
}

fn parse_warmup(text: &str) -> Result<crate::data::plan::Warmup, String> {
    use crate::data::plan::Warmup;
    let ends_in_unit = text.ends_with(['s', 'm', 'h']);
    if !ends_in_unit && let Ok(n) = units::parse_count(text) {
        return Ok(if n == 0 { Warmup::None } else { Warmup::Requests(n) });
    }
    match units::parse_duration(text)
        .map_err(|_| "expected a time with its unit (2s) or a number of requests (1000)")?
    {
        0 => Ok(Warmup::None),
        ns => Ok(Warmup::Time(ns)),
    }
}

fn parse_max_errors(text: &str) -> Result<crate::data::plan::MaxErrors, String> {
    use crate::data::plan::MaxErrors;
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim().parse::<f64>() {
            Ok(p) if (0.0..=100.0).contains(&p) => Ok(MaxErrors::Percent(p)),
            _ => Err("expected a share between 0% and 100%".into()),
        },
        None => units::parse_positive_count(text).map(MaxErrors::Count),
    }
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub enum $name { $($(#[$vdoc])* $variant),* }
    };
}

choice! {
    /// `--order`.
    OrderFlag { /// As in the dataset
    Sequential, /// A new permutation each pass
    Shuffle, /// Drawn with replacement
    Random }
}
/// A switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes
    On,
    /// No
    #[default]
    Off,
}
choice! {
    /// `--on-failed-turn`.
    OnFailedTurn { /// Its session ends
    Stop, /// The next turn follows all the same
    Continue }
}
choice! {
    /// `--pace`.
    PaceFlag { /// In the kernel
    Sleep, /// In the kernel, then spinning for the last 50 us
    Hybrid, /// Spinning
    Spin }
}
choice! {
    /// `--reuse`.
    ReuseFlag { /// As long as both sides allow
    KeepAlive, /// A connection a request
    Never, /// A connection a session
    Session }
}
choice! {
    /// `--stream`.
    StreamFlag { /// By the response's content type
    Auto, /// Always
    Sse, /// Never
    Off }
}
choice! {
    /// `--stream-end`.
    StreamEnd { /// With [DONE] or a finish reason
    Done, /// Any clean end
    Any }
}
choice! {
    /// `--send`.
    SendFlag { /// By size and peer
    Auto, /// Copied by the kernel
    Copy, /// Without copying, where the socket can
    Zerocopy, /// From the page cache by sendfile(2)
    Sendfile }
}
choice! {
    /// `--records`.
    RecordsFlag { /// None
    Off, /// Apache Parquet
    Parquet, /// One JSON object a line
    Jsonl }
}
choice! {
    /// `--format-out`.
    FormatOut { /// A table for people
    Text, /// The summary
    Json, /// The statistics as a table for programs
    Csv }
}
choice! {
    /// `--store`.
    StoreFlag { /// A copy in the cache
    Copy, /// An index over the dataset's own file
    Reference }
}
choice! {
    /// `--compress`.
    CompressFlag { /// As it is mapped
    None, /// Zstandard
    Zstd }
}
choice! {
    /// `--dedup`.
    DedupFlag { /// As the format tells, and by content elsewhere
    Auto, /// As the format tells
    Exact, /// By content
    Chunk, /// Every body by itself
    Off }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_list_of_flags_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn warm_ups_are_times_or_counts() {
        use crate::data::plan::Warmup;
        assert_eq!(parse_warmup("2s"), Ok(Warmup::Time(2_000_000_000)));
        assert_eq!(parse_warmup("1000"), Ok(Warmup::Requests(1000)));
        assert_eq!(parse_warmup("10k"), Ok(Warmup::Requests(10_000)));
        assert_eq!(parse_warmup("1m"), Ok(Warmup::Time(60_000_000_000)), "a minute, as everywhere");
        assert_eq!(parse_warmup("0"), Ok(Warmup::None));
        assert!(parse_warmup("x").is_err());
    }

    #[test]
    fn stages_are_times_and_rates() {
        let Stages::Rate(rates) = parse_stages("10s:100,30s:1k").unwrap() else { panic!("no rates") };
        assert_eq!(rates[1].to, 1000.0);
        let Stages::Concurrency(slots) = parse_stages("10s:c8, 1m:c64").unwrap() else { panic!("none in flight") };
        assert_eq!((slots[0].to, slots[1].duration_ns), (8.0, 60_000_000_000));
        for wrong in ["10s", "x:1", "10s:c8,5s:10", "10s:c0", "10s:-1"] {
            assert!(parse_stages(wrong).is_err(), "{wrong}");
        }
    }
}
