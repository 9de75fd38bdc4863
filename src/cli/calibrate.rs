//! `ringload calibrate`: what one core of this machine reaches against the built-in target, by body size; and the file in which
//! that is kept, so that later runs can say what share of it they had.
//!
//! Each cell is an ordinary run of one worker pinned to one core, with distinct bodies out of a private cache entry and the
//! built-in target on the cores that are left.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::Parser;

use super::{
    flags::{CalibrateFlags, Cli, Command},
    run, terminal,
};
use crate::{
    data::{
        Error, Result,
        plan::{Address, Plan, Reuse},
        units::{SECOND, parse_size, show_count, show_duration, show_size},
    },
    report::{
        Summary,
        ceiling::{Calibration, Calibrations, Cell, Kind, Limit, Machine},
        client::BUSY_MAX,
    },
    sys::{cpu, limit},
};

/// Connections of a cell: as many as a closed loop has without `-c`.
const CONNECTIONS: u64 = super::plan::CONCURRENCY;
/// Distinct bodies of a cell: more than a second-level cache holds, as a replay has it, and written in a moment.
const BODIES_BYTES: u64 = 32 << 20;
/// Small bodies of a cell at most.
const BODIES_MAX: u64 = 10_000;
/// The largest size: it takes two bodies to be distinct, and each is a line of JSON.
const SIZE_MAX: u64 = 64 << 20;
/// The smallest body that is one of many: a line of JSON with a number in it.
const SIZE_MIN: u64 = 64;

/// Measures every cell, prints the table, keeps it.
///
/// Errors: sizes or cores that cannot be, a machine with one core, a file that cannot be written.
pub fn calibrate(flags: &CalibrateFlags) -> Result<u8> {
    let sizes = sizes(&flags.sizes)?;
    let allowed = cpu::allowed_spread();
    if allowed.len() < 2 {
        return Err(Error::Environment {
            call: "calibrate",
            what: "one core is allowed, and the target needs another than the worker".into(),
            cure: "allow a second one (taskset, cpuset, container limits)".into(),
        });
    }
    let cores = match &flags.cores {
        None => vec![allowed[0]],
        Some(list) => cpu::parse_list(list)?,
    };
    let file = file(flags.calibration.as_deref())?;
    let mut known = read(&file).unwrap_or_else(|why| {
        terminal::say(&format!("warning: {why}; it is written anew"));
        Calibrations::default()
    });
    let work = Folder::new()?;
    let mut calibration =
        Calibration { machine: machine(), measured_at: String::new(), connections: CONNECTIONS, cells: Vec::new() };
    for &core in &cores {
        for &size in &sizes {
            terminal::say(&format!("core {core}, {}: {}", size_name(size), show_duration(flags.duration)));
            let summary = cell(core, size, flags.duration, &work)?;
            calibration.measured_at.clone_from(&summary.ended_at);
            calibration.cells.push(figures(core, size, &summary)?);
        }
    }
    let text = if flags.json {
        let mut text = serde_json::to_string_pretty(&calibration).unwrap_or_default();
        text.push('\n');
        text
    } else {
        table(&calibration)
    };
    terminal::result(&text)?;
    known.put(calibration);
    write(&file, &known)?;
    terminal::say(&format!("kept in {}: runs on this machine now tell their share of it", file.display()));
    Ok(0)
}

fn sizes(list: &str) -> Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for text in list.split(',') {
        let size = parse_size(text).map_err(|e| Error::usage(format!("--sizes {list}: {text:?}: {e}")))?;
        if size > SIZE_MAX || (1..SIZE_MIN).contains(&size) {
            return Err(Error::usage(format!("--sizes {list}: {text:?} is outside 0 (a GET) and 64 bytes to 64MiB")));
        }
        sizes.push(size);
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// A folder of its own for the bodies, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ringload-calibrate-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| Error::file("cannot create", &path, e))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever clears temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One run of a worker on a core.
fn cell(core: u32, size: u64, duration_ns: u64, work: &Folder) -> Result<Summary> {
    let (core, connections) = (core.to_string(), CONNECTIONS.to_string());
    let duration = format!("{}ns", duration_ns);
    let bodies = work.0.join(format!("{size}.jsonl"));
    let mut args =
        vec!["ringload", "run", "builtin:", "-q", "-t", "1", "--cores", &core, "-c", &connections, "-d", &duration];
    let path = bodies.to_string_lossy();
    if size > 0 {
        if !bodies.exists() {
            write_bodies(&bodies, size).map_err(|e| Error::file("cannot write", &bodies, e))?;
        }
        args.extend(["-f", &path, "--no-cache", "--repeat", "forever"]);
    }
    // Parsed without the environment's flags: they are for runs.
    match Cli::try_parse_from(args).map(|cli| cli.command) {
        Ok(Command::Run(flags)) => run::quietly(&flags),
        Ok(_) => unreachable!("run is what was written above"),
        Err(e) => Err(Error::usage(format!("calibrate: {e}"))),
    }
}

/// Distinct lines of JSON of one length.
fn write_bodies(path: &Path, size: u64) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(fs::File::create(path)?);
    let padding = vec![b'x'; size as usize - 24];
    for i in 0..(BODIES_BYTES / size).clamp(2, BODIES_MAX) {
        write!(out, "{{\"n\":{i:10},\"x\":\"")?;
        out.write_all(&padding)?;
        // 5 + 10 + 6 bytes in front and 2 behind; the line end is not the body's.
        out.write_all(b"y\"}\n")?;
    }
    out.flush()
}

fn figures(core: u32, body_bytes: u64, summary: &Summary) -> Result<Cell> {
    let (requests, busy) = (&summary.requests, summary.client.busy.unwrap_or(0.0));
    match (summary.rate.succeeded_rps, summary.client.cpu_us_per_request) {
        (Some(requests_per_s), Some(cpu_us_per_request)) if requests.failed == 0 && requests_per_s > 0.0 => Ok(Cell {
            core,
            body_bytes,
            requests_per_s,
            cpu_us_per_request,
            busy,
            limit: if busy > BUSY_MAX { Limit::Client } else { Limit::Target },
        }),
        _ => Err(Error::Failed(format!(
            "calibrate: core {core}, {}: {} requests succeeded and {} failed; see \"ringload doctor\"",
            size_name(body_bytes),
            requests.succeeded,
            requests.failed
        ))),
    }
}

fn size_name(bytes: u64) -> String {
    if bytes == 0 { "GET".into() } else { show_size(bytes) }
}

fn table(calibration: &Calibration) -> String {
    let Machine { cpu, kernel, version } = &calibration.machine;
    let mut text = format!("{cpu}, Linux {kernel}, ringload {version}, {CONNECTIONS} connections a core\n\n");
    text.push_str("core      body     requests/s       bytes/s  CPU us/request   busy  limit\n");
    for c in &calibration.cells {
        text.push_str(&format!(
            "{:4} {:>9} {:>14} {:>13} {:>15.2} {:>5.0}%  {}\n",
            c.core,
            size_name(c.body_bytes),
            show_count(c.requests_per_s as u64),
            show_size((c.requests_per_s * c.body_bytes as f64) as u64),
            c.cpu_us_per_request,
            100.0 * c.busy,
            match c.limit {
                Limit::Client => "the client's core: this is its ceiling",
                Limit::Target => "the target: the client could do more",
            }
        ));
    }
    text
}

/// This machine, as a calibration is keyed.
pub fn machine() -> Machine {
    Machine { cpu: cpu::model(), kernel: limit::kernel_release(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Where calibrations are kept: `--calibration`, else `$XDG_STATE_HOME/ringload`, else `~/.local/state/ringload`.
///
/// Errors: none of them is known.
fn file(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(file) = asked {
        return Ok(file.to_path_buf());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("ringload").join("calibration.json"))
        .ok_or_else(|| Error::usage("no state directory: set HOME or XDG_STATE_HOME, or give --calibration FILE"))
}

/// What is kept; nothing when there is no file.
fn read(file: &Path) -> Result<Calibrations, String> {
    let damaged = |why: String| format!("{}: {why}; \"ringload calibrate\" writes it anew", file.display());
    match fs::read_to_string(file) {
        Ok(text) => Calibrations::parse(&text).map_err(damaged),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Calibrations::default()),
        Err(e) => Err(damaged(e.to_string())),
    }
}

/// Written whole or not at all.
fn write(file: &Path, all: &Calibrations) -> Result<()> {
    let failed = |e| Error::file("cannot write", file, e);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, all.to_json()).and_then(|()| fs::rename(&beside, file)).map_err(failed)
}

/// The calibration of this machine, where there is one. A file that cannot be read is none, and said.
pub fn known(asked: Option<&Path>) -> Option<Calibration> {
    let file = file(asked).ok()?;
    match read(&file) {
        Ok(all) => all.of(&machine()).cloned(),
        Err(why) => {
            terminal::say(&format!("warning: calibration left out: {why}"));
            None
        }
    }
}

/// What a calibration must know of a plan.
pub fn kind(plan: &Plan) -> Kind {
    let tcp = |a: &Address| matches!(a, Address::Tcp(_));
    Kind {
        plain_and_local: plan.targets.iter().all(|t| t.local && !t.tls && t.addresses.iter().all(tcp)),
        keeps_connections: plan.reuse == Reuse::KeepAlive,
    }
}

const _: () = assert!(SECOND == 1_000_000_000, "durations are written in nanoseconds above");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_sorted_once_each_and_checked() {
        assert_eq!(sizes("16KiB,0,1KiB,0").unwrap(), [0, 1024, 16384]);
        for wrong in ["", "x", "10", "1GiB", "1KiB,,2KiB"] {
            let message = sizes(wrong).unwrap_err().to_string();
            assert!(message.contains("--sizes"), "{message}");
        }
    }

    #[test]
    fn bodies_are_distinct_and_of_their_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        for size in [64, 1024] {
            write_bodies(&path, size).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let lines: std::collections::HashSet<&str> = text.lines().collect();
            assert_eq!(lines.len() as u64, BODIES_MAX);
            assert!(lines.iter().all(|l| l.len() as u64 == size), "{}", text.lines().next().unwrap().len());
            assert!(serde_json::from_str::<serde_json::Value>(text.lines().next().unwrap()).is_ok());
        }
    }

    #[test]
    fn a_damaged_file_names_its_cure_and_no_file_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/calibration.json");
        assert_eq!(read(&file), Ok(Calibrations::default()));
        write(&file, &Calibrations::default()).unwrap();
        assert_eq!(read(&file), Ok(Calibrations::default()));
        fs::write(&file, "{\"schema\":").unwrap();
        let why = read(&file).unwrap_err();
        assert!(why.contains("calibration.json") && why.contains("ringload calibrate"), "{why}");
    }
}
