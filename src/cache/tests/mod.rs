//! The cache as its callers see it: what goes in comes out, byte for byte, and nothing in between is believed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use super::*;
use crate::data::{Error, RecordId, Result};

mod dedup;
mod faults;
mod inputs;
mod keys;

/// A folder with a dataset and a cache in it.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn request(&self, dataset: &Path) -> BuildRequest {
        BuildRequest::new(vec![Origin::Path(dataset.to_path_buf())], Some(self.cache()))
    }
}

fn open(request: &BuildRequest) -> Result<Opened> {
    open_with(request, 2)
}

fn open_with(request: &BuildRequest, threads: usize) -> Result<Opened> {
    open_or_build(request, &How::new(threads, &AtomicBool::new(false), &|_| ()))
}

/// Every file below a folder, by its path in it.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => all.extend(tree(&path).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => all.push(name),
        }
    }
    all.sort();
    all
}

/// What must not be left in a cache.
fn rubbish(cache: &Path) -> Vec<String> {
    tree(cache).into_iter().filter(|name| name.contains("tmp")).collect()
}

fn bodies(view: &View) -> Vec<Vec<u8>> {
    view.ids()
        .map(|record| {
            let mut body = Vec::new();
            view.body_to(record, &mut body).unwrap();
            assert!(view.body_is_whole(record), "{record}");
            assert_eq!(view.body_bytes(record), body.len() as u64);
            body
        })
        .collect()
}

/// Chat bodies of so many bytes, about; each is another.
fn lines(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|k| {
            let text: String =
                (0..bytes / 8).map(|i| format!("{:07x} ", (k * 7919 + i) * 2_654_435_761 % 0x0fff_ffff)).collect();
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{k} {text}"}}],"n":{k}}}"#).into_bytes()
        })
        .collect()
}

fn jsonl(lines: &[Vec<u8>]) -> Vec<u8> {
    let mut all = lines.join(&b'\n');
    all.push(b'\n');
    all
}

#[test]
fn what_goes_in_comes_out_from_a_miss_a_hit_and_a_private_build() {
    let b = Bench::new();
    let want = lines(500, 9000);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let off = open(&BuildRequest { cache: None, ..request.clone() }).unwrap();
    let miss = open(&request).unwrap();
    let hit = open(&request).unwrap();
    assert_eq!([off.state, miss.state, hit.state], [CacheState::Off, CacheState::Miss, CacheState::Hit]);
    for opened in [&off, &miss, &hit] {
        assert_eq!(bodies(&opened.view), want);
        assert_eq!((opened.key, opened.report.records), (hit.key, 500));
        assert_eq!(opened.report.models["m"], 500);
    }
    assert_eq!(fs::read_dir(b.cache()).unwrap().count(), 2, "the entry and its lock");
}

#[test]
fn errors_leave_nothing_and_name_their_place() {
    let b = Bench::new();
    let request = b.request(&b.file("d.jsonl", b"{\"a\":1}\n{\"b\":\n{\"c\":3}\n"));
    let error = open(&request).unwrap_err();
    assert!(matches!(&error, Error::BadRecords { count: 1, .. }), "{error}");
    assert!(error.to_string().contains("d.jsonl:2"), "{error}");
    let reading = Reading { skip_bad: true, ..Reading::default() };
    let opened = open(&BuildRequest { reading, ..request.clone() }).unwrap();
    assert_eq!(bodies(&opened.view), [b"{\"a\":1}".to_vec(), b"{\"c\":3}".to_vec()]);
    assert_eq!(opened.skipped, 1);
    assert!(open(&request).is_err(), "the entry without the bad line is another");
    for empty in [&b""[..], b"\n \n\n"] {
        let error = open(&b.request(&b.file("e.jsonl", empty))).unwrap_err().to_string();
        assert!(error.contains("no records"), "{error}");
    }
    assert!(open(&b.request(&b.path("nope.jsonl"))).unwrap_err().to_string().contains("nope.jsonl"));
    let left: Vec<_> = fs::read_dir(b.cache()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("tmp")), "{left:?}");
}

#[test]
fn equal_bodies_are_stored_once() {
    let b = Bench::new();
    let body = lines(1, 20_000).remove(0);
    let opened = open(&b.request(&b.file("d.jsonl", &jsonl(&vec![body.clone(); 200])))).unwrap();
    assert_eq!(bodies(&opened.view), vec![body.clone(); 200]);
    assert_eq!(opened.view.stored_bytes(), body.len() as u64);
    assert_eq!(opened.view.body_bytes_total(), 200 * body.len() as u64);
}

#[test]
fn one_record_is_shown() {
    let b = Bench::new();
    let opened = open(&b.request(&b.file("d.jsonl", b"{\"a\":1}"))).unwrap();
    assert_eq!(opened.view.records(), 1);
    assert_eq!(opened.view.spans(RecordId(0)).len(), 1);
}
