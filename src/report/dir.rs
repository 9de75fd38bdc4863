//! The run directory: every file whole or not at all, and read back.
//!
//! A file is written beside its name (`.<name>.part`), synced and renamed; `summary.json` comes last, so a directory that
//! has one is complete. A directory that is there already is used only when it is empty or a run's own.
//!
//! | file | is |
//! | --- | --- |
//! | `summary.json` | the figures, schema `ringload/summary/1` |
//! | `summary.csv` | the statistics as a table |
//! | `series.json` | the merged tables, schema `ringload/series/1` ([`super::stored`]) |
//! | `latency.hgrm`, `latency_from_schedule.hgrm` | percentile text, from the start and (open loop) from the due time |
//! | `latency.hlog` | every histogram, V2 interval log |
//! | `timeline.csv` | a row a second |
//! | `errors.jsonl` | kept failures, bytes escaped |
//! | `report.html` | the drawn report |
//! | `records.jsonl`, `records.parquet` | a row a request, when asked for |
//! | `responses.jsonl` | with `--keep-responses` ([`super::responses`]) |
//! | `slices.json`, `slices.csv` | with `--slice` ([`super::slices`]) |
//! | `profile_export*`, `inputs.json` | with `--aiperf-artifacts` and `--aiperf-inputs` ([`super::aiperf`]) |

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::data::{Error, RecordId, Result, metric::Metric, outcome::ErrorClass, results::Sample};

use super::{
    csv,
    escape::{escape, unescape},
    hdr, html,
    merge::Merged,
    spools::is_spool,
    stored,
    summary::Summary,
};

/// Every name that a run directory may hold, beside spools and unfinished files.
const NAMES: [&str; 20] = [
    "summary.json",
    "series.json",
    "latency.hgrm",
    "latency_from_schedule.hgrm",
    "latency.hlog",
    "timeline.csv",
    "errors.jsonl",
    "report.html",
    "records.jsonl",
    "records.parquet",
    "profile_export.jsonl",
    "profile_export_aiperf.json",
    "profile_export_aiperf.csv",
    "profile_export_aiperf_timeslices.json",
    "profile_export_aiperf_timeslices.csv",
    "inputs.json",
    "responses.jsonl",
    "slices.json",
    "slices.csv",
    "summary.csv",
];

/// A run directory that is being written.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    written: BTreeSet<String>,
    /// Locked for as long as the run goes on, so that no other run writes there.
    _lock: Option<File>,
}

impl RunDir {
    /// Makes the directory, before the run. One that is there is taken only when it is empty or holds nothing but a run;
    /// that run's files are replaced when the new ones are whole.
    pub fn prepare(path: &Path) -> Result<Self> {
        match fs::read_dir(path) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(|e| Error::file("cannot read", path, e))?;
                    let name = entry.file_name();
                    if !name.to_str().is_some_and(is_ours) {
                        return Err(Error::usage(format!(
                            "--out {}: it exists and is not the directory of a run (it holds {:?}); give another name",
                            path.display(),
                            name
                        )));
                    }
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(|e| Error::file("cannot make", path, e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(Error::usage(format!("--out {}: it exists and is no directory", path.display())));
            }
            Err(e) => return Err(Error::file("cannot read", path, e)),
        }
        let lock = File::open(path).map_err(|e| Error::file("cannot open", path, e))?;
        // Where locks are not to be had nothing is known of others.
        if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(Error::usage(format!(
                "--out {}: another run is writing there; wait for its end, or give another name",
                path.display()
            )));
        }
        let dir = Self { path: path.to_path_buf(), written: BTreeSet::new(), _lock: Some(lock) };
        dir.remove(|name| name.ends_with(".part") || name.ends_with(".spool"))?;
        Ok(dir)
    }

    /// A directory that is known to be a run's own.
    #[cfg(test)]
    pub(super) fn take(path: &Path) -> Self {
        Self { path: path.to_path_buf(), written: BTreeSet::new(), _lock: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a file; nothing is seen under its name until [`RunDir::commit`].
    pub fn create(&self, name: &str) -> Result<PartFile> {
        debug_assert!(NAMES.contains(&name));
        let path = self.path.join(format!(".{name}.part"));
        let file = File::create(&path).map_err(|e| Error::file("cannot create", &path, e))?;
        Ok(PartFile { name: name.to_owned(), path, file: Some(BufWriter::new(file)) })
    }

    /// Syncs files and puts them under their names, in the order given.
    pub fn commit(&mut self, parts: Vec<PartFile>) -> Result<()> {
        let mut parts = parts;
        for part in &mut parts {
            part.sync()?;
        }
        for mut part in parts {
            let to = self.path.join(&part.name);
            fs::rename(&part.path, &to).map_err(|e| Error::file("cannot rename to", &to, e))?;
            self.written.insert(std::mem::take(&mut part.name));
            part.path = PathBuf::new();
        }
        Ok(())
    }

    /// Writes every file of a run that is made of its figures, and removes what an earlier run left.
    pub fn write_run(&mut self, summary: &Summary, merged: &Merged) -> Result<()> {
        let mut files: Vec<(&str, Vec<u8>)> =
            vec![("latency.hgrm", hdr::percentile_text(merged.series(Metric::RequestLatency)).into_bytes())];
        if summary.plan.is_open_loop() {
            let series = merged.series(Metric::RequestLatencyFromSchedule);
            files.push(("latency_from_schedule.hgrm", hdr::percentile_text(series).into_bytes()));
        }
        files.extend([
            ("latency.hlog", hdr::interval_log(merged, summary)),
            ("summary.csv", csv::summaries(&[("run".to_owned(), summary)]).into_bytes()),
            ("timeline.csv", csv::timeline(&merged.timeline).into_bytes()),
            ("errors.jsonl", samples_to_jsonl(&merged.samples).into_bytes()),
            ("report.html", html::page(summary, merged).into_bytes()),
            ("series.json", stored::to_json(merged).into_bytes()),
            ("summary.json", summary.to_json().into_bytes()),
        ]);
        let mut parts = Vec::with_capacity(files.len());
        for (name, bytes) in files {
            let mut part = self.create(name)?;
            part.write_all(&bytes).map_err(|e| Error::file("cannot write", &part.path, e))?;
            parts.push(part);
        }
        self.commit(parts)?;
        let written = &self.written;
        self.remove(|name| NAMES.contains(&name) && !written.contains(name))
    }

    fn remove(&self, unwanted: impl Fn(&str) -> bool) -> Result<()> {
        let entries = fs::read_dir(&self.path).map_err(|e| Error::file("cannot read", &self.path, e))?;
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(|name| is_ours(name) && unwanted(name)) {
                let path = entry.path();
                fs::remove_file(&path).map_err(|e| Error::file("cannot remove", &path, e))?;
            }
        }
        Ok(())
    }
}

fn is_ours(name: &str) -> bool {
    let part = name.strip_prefix('.').and_then(|n| n.strip_suffix(".part"));
    NAMES.contains(&part.unwrap_or(name)) || is_spool(name)
}

/// A file under its temporary name; removed when it is dropped before [`RunDir::commit`].
#[derive(Debug)]
pub struct PartFile {
    name: String,
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl PartFile {
    fn sync(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let synced = file.into_inner().map_err(|e| e.into_error()).and_then(|f| f.sync_data());
        synced.map_err(|e| Error::file("cannot write", &self.path, e))
    }

    /// The error of a write to it.
    pub fn error(&self, source: io::Error) -> Error {
        Error::file("cannot write", &self.path, source)
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A line of `errors.jsonl`.
#[derive(Serialize, Deserialize)]
struct StoredSample {
    class: String,
    record: u32,
    at_ns: u64,
    status: Option<u16>,
    what: String,
    first_bytes: String,
    last_bytes: String,
}

fn samples_to_jsonl(samples: &[Sample]) -> String {
    let mut out = String::new();
    for s in samples {
        let line = StoredSample {
            class: s.class.name().to_owned(),
            record: s.record.0,
            at_ns: s.at_ns,
            status: (s.status > 0).then_some(s.status),
            what: s.what.clone(),
            first_bytes: escape(&s.first_bytes),
            last_bytes: escape(&s.last_bytes),
        };
        out.push_str(&serde_json::to_string(&line).unwrap_or_else(|_| unreachable!("plain data")));
        out.push('\n');
    }
    out
}

fn samples_from_jsonl(text: &str) -> Result<Vec<Sample>, String> {
    let read = |line: &str| {
        let s: StoredSample = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let class = ErrorClass::ALL.into_iter().find(|c| c.name() == s.class);
        Ok(Sample {
            class: class.ok_or_else(|| format!("{:?} is no error class", s.class))?,
            record: RecordId(s.record),
            at_ns: s.at_ns,
            status: s.status.unwrap_or(0),
            what: s.what,
            first_bytes: unescape(&s.first_bytes),
            last_bytes: unescape(&s.last_bytes),
        })
    };
    text.lines().map(read).collect()
}

/// A finished run, read back.
#[derive(Clone, Debug)]
pub struct Run {
    /// The directory as it was given.
    pub name: String,
    /// Its figures.
    pub summary: Summary,
    /// Its tables.
    pub merged: Merged,
}

/// Reads a finished run from its directory. A directory without a whole `summary.json` is no run: exit 2.
pub fn load(path: &Path) -> Result<Run> {
    let summary_path = path.join("summary.json");
    let text = match fs::read_to_string(&summary_path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(Error::usage(format!(
                "{} is not the directory of a finished run: it has no summary.json",
                path.display()
            )));
        }
        Err(e) => return Err(Error::file("cannot read", &summary_path, e)),
    };
    let bad = |file: &Path, why: String| Error::usage(format!("{}: {why}", file.display()));
    let summary: Summary = serde_json::from_str(&text).map_err(|e| bad(&summary_path, e.to_string()))?;
    if summary.schema != super::summary::SCHEMA {
        let why = format!("its schema is {:?}, expected {:?}", summary.schema, super::summary::SCHEMA);
        return Err(bad(&summary_path, why));
    }
    let read = |name: &str| {
        let file = path.join(name);
        fs::read_to_string(&file).map_err(|e| Error::file("cannot read", &file, e))
    };
    let mut merged = stored::from_json(&read("series.json")?).map_err(|why| bad(&path.join("series.json"), why))?;
    merged.samples = samples_from_jsonl(&read("errors.jsonl")?).map_err(|why| bad(&path.join("errors.jsonl"), why))?;
    Ok(Run { name: path.display().to_string(), summary, merged })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn two_runs_do_not_write_into_one_directory_at_once() {
        let temp = tempfile::tempdir().unwrap();
        let first = RunDir::prepare(temp.path()).unwrap();
        let error = RunDir::prepare(temp.path()).unwrap_err().to_string();
        assert!(error.contains("another run is writing there"), "{error}");
        drop(first);
        // A process that another test started may hold a copy of the lock between its fork and its exec.
        let begun = std::time::Instant::now();
        while let Err(error) = RunDir::prepare(temp.path()) {
            assert!(begun.elapsed().as_secs() < 10, "{error}");
        }
    }

    #[test]
    fn a_run_is_written_whole_and_read_back() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("deep/run");
        let (summary, merged) = fixture::summary();
        let mut dir = RunDir::prepare(&path).unwrap();
        dir.write_run(&summary, &merged).unwrap();
        assert_eq!(
            names(&path),
            [
                "errors.jsonl",
                "latency.hgrm",
                "latency.hlog",
                "report.html",
                "series.json",
                "summary.csv",
                "summary.json",
                "timeline.csv"
            ]
        );
        let run = load(&path).unwrap();
        assert_eq!(run.summary, summary);
        assert_eq!(run.merged.samples, merged.samples);
        // The same results give the same files, byte for byte.
        let before: Vec<_> = names(&path).iter().map(|n| fs::read(path.join(n)).unwrap()).collect();
        dir.write_run(&run.summary, &run.merged).unwrap();
        let after: Vec<_> = names(&path).iter().map(|n| fs::read(path.join(n)).unwrap()).collect();
        assert!(before == after);
    }

    #[test]
    fn what_is_no_run_is_refused_and_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("thesis.txt"), "years of work").unwrap();
        let why = RunDir::prepare(temp.path()).unwrap_err();
        assert!(why.to_string().contains("thesis.txt") && why.exit_code() == 2, "{why}");
        assert!(RunDir::prepare(&temp.path().join("thesis.txt")).is_err());
        assert_eq!(names(temp.path()), ["thesis.txt"]);
        assert!(load(temp.path()).unwrap_err().to_string().contains("no summary.json"));
    }

    #[test]
    fn leftovers_of_a_killed_run_and_stale_files_go() {
        let temp = tempfile::tempdir().unwrap();
        for name in [".summary.json.part", "rows-3.spool", "records.jsonl", "latency_from_schedule.hgrm"] {
            fs::write(temp.path().join(name), "old").unwrap();
        }
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        assert_eq!(names(temp.path()), ["latency_from_schedule.hgrm", "records.jsonl"]);
        let (summary, merged) = fixture::summary();
        dir.write_run(&summary, &merged).unwrap();
        assert!(!names(temp.path()).iter().any(|n| n.starts_with("records") || n.contains("schedule")));
    }

    #[test]
    fn a_file_that_is_not_committed_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        let mut part = dir.create("records.jsonl").unwrap();
        part.write_all(b"half").unwrap();
        drop(part);
        assert!(names(temp.path()).is_empty());
        let mut part = dir.create("records.jsonl").unwrap();
        part.write_all(b"whole").unwrap();
        dir.commit(vec![part]).unwrap();
        assert_eq!(names(temp.path()), ["records.jsonl"]);
    }
}
