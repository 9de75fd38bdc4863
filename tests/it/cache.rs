//! The cache as the program uses it: entries that change, vanish or fill up under real processes, and what is told of it.
//!
//! This file is long because each fault is one scene with a process, a folder and an end that is judged whole.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::support::{OK, Server, adds_up, ringload, ringload_in, run};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Chat bodies of about so many bytes, each another.
fn bodies(count: usize, bytes: usize) -> Vec<String> {
    (0..count)
        .map(|k| {
            let words: String =
                (0..bytes / 8).map(|i| format!("{:07x} ", (k * 7919 + i) * 2_654_435_761 % 0x0fff_ffff)).collect();
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{k} {words}"}}]}}"#)
        })
        .collect()
}

fn dataset(dir: &Path, bodies: &[String]) -> PathBuf {
    let path = dir.join("d.jsonl");
    fs::write(&path, bodies.join("\n") + "\n").unwrap();
    path
}

fn built(dir: &Path, args: &[&str]) -> Value {
    let out = ringload(dir, &[&["build", "--json"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn entry(built: &Value) -> PathBuf {
    PathBuf::from(built["entry"].as_str().unwrap())
}

/// Starts the program without waiting for it.
fn start(dir: &Path, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(args)
        .env("RINGLOAD_CACHE_DIR", dir.join("cache"))
        .env("NO_COLOR", "1")
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The end of a process, within a bound.
fn end(mut child: Child) -> Output {
    drop(child.stdin.take());
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

/// Names in the cache that nobody may find there.
fn left_over(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![dir.join("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains("tmp") {
                found.push(entry.path().display().to_string());
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found
}

fn verified(dir: &Path) {
    let out = ringload(dir, &["cache", "verify"]);
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
}

/// A server that does something to the entry at the request of this number, from 0.
fn server_that(at: usize, act: impl Fn() + Send + Sync + 'static) -> Server {
    let seen = AtomicUsize::new(0);
    Server::start(move |conn| {
        while conn.request().is_some() {
            if seen.fetch_add(1, Ordering::SeqCst) == at {
                act();
            }
            conn.send(OK);
        }
    })
}

#[test]
fn every_way_of_storing_sends_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    // Equal bodies, a history that grows, text that moved, and bodies of their own.
    let mut all = bodies(40, 30_000);
    let mut history = String::from(r#"{"model":"m","messages":["#);
    for (k, own) in bodies(12, 20_000).iter().enumerate() {
        history.push_str(&format!(r#"{{"role":"user","content":{}}},"#, Value::from(own.as_str())));
        all.push(format!(r#"{history}{{"role":"user","content":"{k}"}}]}}"#));
    }
    all.extend(all[..10].to_vec());
    all.extend(all[10..20].iter().map(|body| format!(r#"{{"moved":true,{}"#, &body[1..])).collect::<Vec<_>>());
    dataset(dir.path(), &all);
    let mut stored = Vec::new();
    for how in [
        &["--dedup", "off"][..],
        &["--dedup", "auto"],
        &["--dedup", "exact"],
        &["--dedup", "chunk"],
        &["--store", "reference"],
        &["--compress", "zstd"],
        &["--no-cache"],
    ] {
        for pass in 0..2 {
            let server = Server::always(OK);
            let (code, summary) = run(dir.path(), &server.url(), &[&["-f", "d.jsonl", "-c", "1"], how].concat());
            assert_eq!(code, 0, "{how:?}: {summary}");
            let sent: Vec<_> = server.requests().into_iter().map(|r| text(&r.body)).collect();
            assert!(sent == all, "{how:?}, pass {pass}");
            let checked = ["-f", "d.jsonl", "-c", "3", "--body-digest"];
            let (code, summary) = run(dir.path(), "builtin:?mode=check", &[&checked, how].concat());
            assert_eq!((code, &summary["target"]["wrong"]), (0, &0.into()), "{how:?}: {summary}");
            assert_eq!(summary["target"]["verified"], all.len(), "{how:?}");
            stored.push(summary["dataset"]["stored_bytes"].as_u64().unwrap());
        }
    }
    assert!(stored[2] < stored[0] * 3 / 4, "{stored:?}");
    verified(dir.path());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn bodies_that_are_overwritten_under_a_run_are_told_and_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(50, 40_000);
    dataset(dir.path(), &all);
    let data = entry(&built(dir.path(), &["d.jsonl"])).join("dataset.dat");
    let server = server_that(20, move || {
        let bytes = fs::metadata(&data).unwrap().len();
        File::options().write(true).open(&data).unwrap().write_all_at(&vec![b'x'; bytes as usize], 0).unwrap();
    });
    let begun = Instant::now();
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "2", "-d", "30s"]);
    assert!(begun.elapsed() < PATIENCE, "it ran on");
    assert_eq!((code, &summary["status"], &summary["ended_by"]), (1, &"failed".into(), &"error".into()), "{summary}");
    assert!(summary["errors"]["cache_changed"].as_u64().unwrap() > 0, "{}", summary["errors"]);
    adds_up(&summary);
    // The next use sees that the file was touched, looks at every byte, and heals.
    let (code, summary) = run(dir.path(), &Server::always(OK).url(), &["-f", "d.jsonl"]);
    assert_eq!((code, &summary["dataset"]["cache"]), (0, &"miss".into()));
    verified(dir.path());
}

#[test]
fn one_flipped_byte_under_a_run_is_told_though_the_time_was_put_back_and_a_removal_is_not() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(50, 40_000));
    let data = entry(&built(dir.path(), &["d.jsonl"])).join("dataset.dat");
    let server = server_that(20, move || {
        let file = File::options().read(true).write(true).open(&data).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let (mut byte, at) = ([0], file.metadata().unwrap().len() - 100);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        file.set_modified(modified).unwrap();
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1", "-t", "1"]);
    assert_eq!((code, &summary["status"]), (1, &"failed".into()), "{summary}");
    assert!(summary["notes"].to_string().contains("were changed under the run"), "{}", summary["notes"]);
    // The next use heals it. One whose files are removed meanwhile is played to its end.
    let data = entry(&built(dir.path(), &["d.jsonl"])).join("dataset.dat");
    let server = server_that(20, move || fs::remove_file(&data).unwrap());
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1", "-t", "1"]);
    assert_eq!((code, &summary["status"]), (0, &"complete".into()), "{summary}");
}

#[test]
fn data_that_is_cut_short_under_a_run_is_a_class_of_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(200, 60_000));
    for send in ["auto", "copy", "zerocopy"] {
        let data = entry(&built(dir.path(), &["d.jsonl"])).join("dataset.dat");
        let server = server_that(10, move || File::options().write(true).open(&data).unwrap().set_len(5000).unwrap());
        let (code, summary) =
            run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "2", "-d", "30s", "--send", send]);
        assert_eq!((code, &summary["status"]), (1, &"failed".into()), "{send}: {summary}");
        assert!(summary["errors"]["cache_changed"].as_u64().unwrap() > 0, "{send}: {}", summary["errors"]);
        adds_up(&summary);
        assert_eq!(built(dir.path(), &["d.jsonl"])["cache"], "miss", "{send}: not healed");
    }
    verified(dir.path());
}

#[test]
fn an_entry_that_is_removed_or_replaced_under_a_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(60, 20_000);
    dataset(dir.path(), &all);
    let key = built(dir.path(), &["d.jsonl"])["key"].as_str().unwrap().to_owned();
    let place = dir.path().to_path_buf();
    let server = server_that(10, move || {
        assert!(ringload(&place, &["cache", "rm", &key]).status.success());
        built(&place, &["d.jsonl"]);
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1"]);
    assert_eq!((code, &summary["status"]), (0, &"complete".into()), "{summary}");
    let sent: Vec<_> = server.requests().into_iter().map(|r| text(&r.body)).collect();
    assert!(sent == all);
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn an_entry_in_use_by_another_process_is_not_collected() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(60, 2_000));
    let key = built(dir.path(), &["d.jsonl"])["key"].clone();
    static GO: AtomicBool = AtomicBool::new(false);
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            let begun = Instant::now();
            while !GO.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(2));
            }
            conn.send(OK);
        }
    });
    let child = start(dir.path(), &["run", &server.url(), "-f", "d.jsonl", "-c", "1", "-t", "1", "--json", "-q"]);
    let begun = Instant::now();
    while server.requests().is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(2));
    }
    let gc = |args: &[&str]| -> Value {
        let out = ringload(dir.path(), &[&["cache", "gc", "--max-size", "0", "--json"], args].concat());
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let kept = gc(&[]);
    assert_eq!(
        (&kept["kept"][0][0], &kept["kept"][0][1], kept["removed"].as_array().unwrap().len()),
        (&key, &"in use".into(), 0)
    );
    GO.store(true, Ordering::SeqCst);
    let out = end(child);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(gc(&["--dry-run"])["removed"][0][0], key);
    assert_eq!(gc(&[])["removed"][0][0], key);
    assert_eq!(built(dir.path(), &["d.jsonl"])["cache"], "miss");
}

#[test]
fn a_builder_that_is_killed_at_any_moment_leaves_nothing_that_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(4000, 1500);
    dataset(dir.path(), &all);
    let begun = Instant::now();
    built(dir.path(), &["d.jsonl"]);
    let whole = begun.elapsed();
    ringload(dir.path(), &["cache", "gc", "--max-size", "0"]);
    let mut died = 0;
    for k in 0..24u32 {
        let mut child = start(dir.path(), &["build", "d.jsonl"]);
        thread::sleep(whole * (k * 7 % 24) / 24);
        child.kill().unwrap();
        died += u32::from(child.wait().unwrap().signal() == Some(9));
        if k % 3 == 0 {
            verified(dir.path());
            ringload(dir.path(), &["cache", "gc", "--max-size", "0"]);
        }
    }
    assert!(died > 5, "{died}: none was killed at work");
    let last = built(dir.path(), &["d.jsonl", "--verify"]);
    assert_eq!(last["records"], all.len());
    assert!(ringload(dir.path(), &["cache", "gc"]).status.success());
    verified(dir.path());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn eight_builders_at_once_make_one_entry_and_all_get_it() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(5000, 1000));
    let children: Vec<_> = (0..8).map(|_| start(dir.path(), &["build", "d.jsonl", "--json"])).collect();
    let states: Vec<_> = children
        .into_iter()
        .map(|child| {
            let out = end(child);
            assert!(out.status.success(), "{}", text(&out.stderr));
            serde_json::from_slice::<Value>(&out.stdout).unwrap()["cache"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(states.iter().filter(|s| *s == "miss").count(), 1, "{states:?}");
    assert_eq!(states.iter().filter(|s| *s == "hit").count(), 7, "{states:?}");
    verified(dir.path());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

/// Reads what a process says until a line holds these words.
fn said(child: &mut Child, words: &str) -> String {
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 0 {
        if line.contains(words) {
            child.stderr = Some(reader.into_inner());
            return line;
        }
        line.clear();
    }
    panic!("it never said {words:?}");
}

#[test]
fn who_waits_says_for_what_and_ends_on_an_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(20, 1000));
    let first = built(dir.path(), &["d.jsonl"]);
    let key = first["key"].as_str().unwrap();
    assert!(ringload(dir.path(), &["cache", "rm", key]).status.success());
    let lock = File::open(dir.path().join(format!("cache/{key}.lock"))).unwrap();
    lock.lock().unwrap();
    let mut waits = start(dir.path(), &["build", "d.jsonl"]);
    let line = said(&mut waits, "waiting for");
    assert!(line.contains(".lock"), "{line}");
    interrupt(&waits);
    assert_eq!(end(waits).status.code(), Some(130));
    // One that may not wait that long builds by itself, and the next one that waits gets the entry of who is done.
    let private = built(dir.path(), &["d.jsonl", "--lock-timeout", "200ms"]);
    assert_eq!((&private["cache"], &private["entry"]), (&"off".into(), &Value::Null));
    let mut waits = start(dir.path(), &["build", "d.jsonl", "--json"]);
    said(&mut waits, "waiting for");
    drop(lock);
    let out = end(waits);
    assert!(out.status.success());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn an_interrupt_ends_the_wait_for_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    // A pipe that is open and silent, on standard input and as a path; and a path that nobody opens to write.
    let mut silent = start(dir.path(), &["build", "-", "--format", "raw_payload"]);
    silent.stdin.as_mut().unwrap().write_all(b"{\"a\":1}\n").unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let unopened = start(dir.path(), &["build", "fifo", "--format", "raw_payload"]);
    for child in [silent, unopened] {
        assert!(await_hearing(&child, PATIENCE));
        interrupt(&child);
        let mut child = child;
        let stdin = child.stdin.take();
        let out = end(child);
        assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
        drop(stdin);
    }
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

/// Waits for a while until a process hears signals: before that they end it by themselves.
fn await_hearing(child: &Child, patience: Duration) -> bool {
    let status = format!("/proc/{}/status", child.id());
    let begun = Instant::now();
    let blocked = |line: &str| {
        line.strip_prefix("SigBlk:").is_some_and(|set| u64::from_str_radix(set.trim(), 16).unwrap() & 2 != 0)
    };
    while begun.elapsed() < patience {
        if fs::read_to_string(&status).unwrap().lines().any(blocked) {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn the_first_interrupt_ends_the_wait_for_a_pipe_that_nobody_opens_wherever_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(3, 100));
    let prompts = dir.path().join("p.jsonl");
    fs::write(&prompts, "{\"text\":\"a\"}\n").unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let url = Server::always(OK).url();
    for args in [
        &["run", &url, "-B", "fifo"][..],
        &["run", &url, "-f", "p.jsonl", "--format", "single_turn", "--corpus", "fifo"],
        &["run", &url, "-f", "p.jsonl", "--format", "single_turn", "--system-prompt-file", "fifo"],
        &["run", "builtin:?log=fifo", "-b", "{}"],
        &["target", "--listen", "127.0.0.1:0", "log=fifo"],
        &["export-requests", "d.jsonl", "-o", "fifo"],
        &["build", "fifo", "--format", "raw_payload"],
        &["run", &url, "-b", "{}", "--config", "fifo"],
        &["run", &url, "-b", "{}", "--rate-series", "fifo"],
    ] {
        let child = start(dir.path(), args);
        assert!(await_hearing(&child, PATIENCE));
        interrupt(&child);
        let out = end(child);
        assert_eq!(out.status.code(), Some(130), "{args:?}: {}", text(&out.stderr));
    }
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn pipes_and_packed_files_are_the_same_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(3000, 9000);
    let path = dataset(dir.path(), &all);
    let plain = built(dir.path(), &["d.jsonl"]);
    let content = fs::read(&path).unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (input, from) in [("-", None), ("fifo", Some(&fifo))] {
        let mut child = start(dir.path(), &["build", input, "--json", "--format", "raw_payload"]);
        let mut stdin = child.stdin.take().unwrap();
        let writer = {
            let (content, from) = (content.clone(), from.cloned());
            thread::spawn(move || match from {
                None => stdin.write_all(&content).unwrap(),
                Some(fifo) => File::options().write(true).open(fifo).unwrap().write_all(&content).unwrap(),
            })
        };
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        writer.join().unwrap();
        assert!(child.wait().unwrap().success());
        let of_pipe: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&of_pipe["key"], &of_pipe["cache"]), (&plain["key"], &"hit".into()), "{input}");
    }
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&content).unwrap();
    for (name, packed) in [("d.gz", gz.finish().unwrap()), ("d.zst", zstd::encode_all(&content[..], 1).unwrap())] {
        fs::write(dir.path().join(name), packed).unwrap();
        let of_packed = built(dir.path(), &[name]);
        for file in ["dataset.dat", "index.dat"] {
            // But for the key, which stands in the header and in its checksum.
            let of = |b: &Value| fs::read(entry(b).join(file)).unwrap();
            assert!(of(&of_packed).len() == of(&plain).len(), "{name}: {file}");
        }
        assert!(
            fs::read(entry(&of_packed).join("dataset.dat")).unwrap()
                == fs::read(entry(&plain).join("dataset.dat")).unwrap()
        );
    }
}

#[test]
fn the_limit_of_a_files_size_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(3000, 1000));
    let limited = |command: &str| {
        Command::new("sh")
            .args(["-c", &format!("ulimit -f 1000; exec \"$0\" {command}"), env!("CARGO_BIN_EXE_ringload")])
            .env("RINGLOAD_CACHE_DIR", dir.path().join("cache"))
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    for command in ["build d.jsonl", "run builtin: -f d.jsonl -t 1"] {
        let out = limited(command);
        assert_eq!((out.status.code(), out.status.signal()), (Some(3), None), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains("ulimit -f"), "{}", text(&out.stderr));
        assert_eq!(left_over(dir.path()), Vec::<String>::new());
    }
    assert_eq!(built(dir.path(), &["d.jsonl"])["cache"], "miss");
}

#[test]
fn a_cache_that_cannot_be_written_is_said_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(10, 1000);
    dataset(dir.path(), &all);
    fs::write(dir.path().join("file"), "").unwrap();
    for folder in ["/proc/ringload", "file/cache", "/dev/null"] {
        let server = Server::always(OK);
        let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1", "--cache-dir", folder]);
        assert_eq!((code, &summary["dataset"]["cache"]), (0, &"off".into()), "{folder}: {summary}");
        assert_eq!(server.requests().len(), all.len());
        let out = ringload(dir.path(), &["build", "d.jsonl", "--cache-dir", folder]);
        assert!(out.status.success() && text(&out.stderr).contains("building privately"), "{}", text(&out.stderr));
    }
}

#[test]
fn a_compressed_entry_is_the_same_entry() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(200, 3000);
    dataset(dir.path(), &all);
    let packed = built(dir.path(), &["d.jsonl", "--compress", "zstd"]);
    let has = |name: &str| entry(&packed).join(name).exists();
    assert!(has("dataset.dat.zst") && !has("dataset.dat"));
    verified(dir.path());
    let server = Server::always(OK);
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1"]);
    assert_eq!((code, &summary["dataset"]["cache"], &summary["dataset"]["key"]), (0, &"hit".into(), &packed["key"]));
    assert!(server.requests().into_iter().map(|r| text(&r.body)).eq(all));
    assert!(has("dataset.dat"));
    let again = built(dir.path(), &["d.jsonl", "--compress", "zstd"]);
    assert_eq!((&again["cache"], has("dataset.dat")), (&"hit".into(), false));
}

#[test]
fn an_entry_over_the_dataset_itself_holds_no_bodies_and_sees_every_edit() {
    let dir = tempfile::tempdir().unwrap();
    let all = bodies(200, 3000);
    let path = dataset(dir.path(), &all);
    let first = built(dir.path(), &["d.jsonl", "--store", "reference"]);
    assert!(!entry(&first).join("dataset.dat").exists());
    verified(dir.path());
    assert_eq!(built(dir.path(), &["d.jsonl", "--store", "reference"])["cache"], "hit");
    let meta = fs::metadata(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"{\"Model", 0).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    // By its key the old entry shows nothing that it was not built from.
    let shown = ringload(dir.path(), &["inspect", first["key"].as_str().unwrap(), "--record", "0", "--body"]);
    assert_eq!((shown.status.code(), shown.stdout.len()), (Some(1), 0), "{}", text(&shown.stderr));
    let server = Server::always(OK);
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1", "--store", "reference"]);
    assert_eq!((code, &summary["dataset"]["cache"]), (0, &"miss".into()), "{summary}");
    assert!(server.requests()[0].body.starts_with(b"{\"Model"));
    let out = ringload(dir.path(), &["cache", "verify"]);
    assert_eq!(out.status.code(), Some(1), "the old entry points into a file that is another now");
}

#[test]
fn flags_that_leave_each_other_nothing_to_do_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), &bodies(2, 100));
    for (args, word) in [
        (&["--compress", "zstd", "--no-cache"][..], "--no-cache"),
        (&["--compress", "zstd", "--store", "reference"], "--store reference"),
        (&["--dedup", "chunk", "--store", "reference"], "--dedup"),
        (&["--compress", "lz4"], "zstd"),
        (&["--store", "link"], "reference"),
    ] {
        let out = ringload(dir.path(), &[&["build", "d.jsonl"], args].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(text(&out.stderr).contains(word), "{}", text(&out.stderr));
    }
    fs::create_dir(dir.path().join("folder")).unwrap();
    for name in ["a.jsonl", "b.jsonl"] {
        fs::write(dir.path().join("folder").join(name), "{}\n").unwrap();
    }
    let out = ringload(dir.path(), &["build", "folder", "--store", "reference"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("--store reference"), "{}", text(&out.stderr));
}

#[test]
fn entries_are_listed_shipped_and_removed() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let all = bodies(100, 3000);
    dataset(dir.path(), &all);
    let first = built(dir.path(), &["d.jsonl"]);
    for field in ["key", "cache", "records", "body_bytes", "stored_bytes", "skipped", "seconds", "entry"] {
        assert!(!first[field].is_null(), "{field}");
    }
    let key = first["key"].as_str().unwrap();
    let out = ringload(dir.path(), &["cache", "path", &key[..8]]);
    assert_eq!(text(&out.stdout).trim(), entry(&first).to_str().unwrap());
    assert!(ringload(dir.path(), &["cache", "export", key, "e.zst"]).status.success());
    let packed = fs::read(dir.path().join("e.zst")).unwrap();
    fs::write(there.path().join("e.zst"), &packed).unwrap();
    let out = ringload(there.path(), &["cache", "import", "e.zst"]);
    assert_eq!(text(&out.stdout).trim(), key, "{}", text(&out.stderr));
    dataset(there.path(), &all);
    assert_eq!(built(there.path(), &["d.jsonl"])["cache"], "hit");
    let list: Value = serde_json::from_slice(&ringload(there.path(), &["cache", "list", "--json"]).stdout).unwrap();
    assert_eq!((&list[0]["key"], list[0]["bytes"].as_u64().unwrap() > 1000), (&key.into(), true));
    // Half of it is refused and leaves nothing.
    let half = tempfile::tempdir().unwrap();
    fs::write(half.path().join("e.zst"), &packed[..packed.len() / 2]).unwrap();
    assert_eq!(ringload(half.path(), &["cache", "import", "e.zst"]).status.code(), Some(1));
    assert_eq!(left_over(half.path()), Vec::<String>::new());
    assert!(ringload(there.path(), &["cache", "rm", key]).status.success());
    assert_eq!(ringload(there.path(), &["cache", "path", key]).status.code(), Some(2));
}

/// All bodies of an entry.
fn stored_bodies(cache: &Path, key: &str) -> Vec<Vec<u8>> {
    let key = ringload::cache::Digest::parse(key).unwrap();
    let never = AtomicBool::new(false);
    let how = ringload::cache::How::new(1, &never, &|_| ());
    let view = ringload::cache::store::open(cache, key, &how).unwrap();
    view.ids()
        .map(|record| {
            let mut body = Vec::new();
            view.body_to(record, &mut body).unwrap();
            body
        })
        .collect()
}

#[test]
fn every_fixture_has_the_same_bodies_however_it_is_stored() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut fixtures = 0;
    for folder in fs::read_dir(&data).unwrap().flatten().filter(|f| f.path().is_dir()) {
        let files = fs::read_dir(folder.path()).unwrap().flatten().map(|f| f.path());
        for file in files.filter(|f| f.to_string_lossy().ends_with(".want.json")) {
            let golden: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let input = format!("{}/{}", folder.file_name().to_string_lossy(), golden["input"].as_str().unwrap());
            let own = golden["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            let cache = tempfile::tempdir().unwrap();
            let bodies: Vec<_> = ["off", "auto", "exact", "chunk"]
                .map(|dedup| {
                    let mut args = vec!["build", &input, "--format", golden["format"].as_str().unwrap(), "--json"];
                    args.extend(own.clone());
                    args.extend(["--dedup", dedup]);
                    let out = ringload_in(&data, cache.path(), &args);
                    assert!(out.status.success(), "{input}: {}", text(&out.stderr));
                    let built: Value = serde_json::from_slice(&out.stdout).unwrap();
                    stored_bodies(cache.path(), built["key"].as_str().unwrap())
                })
                .into();
            assert_eq!(bodies[0].len(), golden["records"].as_array().unwrap().len(), "{input}");
            assert!(bodies.iter().all(|one| *one == bodies[0]), "{input}");
            fixtures += 1;
        }
    }
    assert!(fixtures >= 40, "{fixtures} fixtures");
}
