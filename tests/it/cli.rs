//! The commands beside `run`: what they print, and how they end.

use crate::support::{OK, Server, ringload, run};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_version_man_completions_and_doctor_answer() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--version"][..], &["ringload "][..]),
        (&["--help"], &["run", "build", "inspect", "cache", "target", "report", "merge", "doctor"]),
        (&["run", "--help"], &["--concurrency", "--rate", "--dataset", "--fail-if", "--tokenizer"]),
        (&["completions", "bash"], &["complete", "ringload"]),
        (&["completions", "zsh"], &["#compdef ringload"]),
        (&["man"], &[".TH", "ringload"]),
        (&["doctor"], &["io_uring", "memlock", "nofile", "local ports", "allowed cores"]),
    ] {
        let out = ringload(dir.path(), args);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", text(&out.stderr));
        for word in words {
            assert!(text(&out.stdout).contains(word), "{args:?}: no {word}");
        }
    }
    let out = ringload(dir.path(), &["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(findings.as_array().unwrap().iter().any(|f| f["what"] == "kernel"));
}

#[test]
fn build_then_inspect_gives_back_the_exact_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = [r#"{"a" : 1e0}"#, r#"{"b":"\u00e9"}"#];
    std::fs::write(dir.path().join("d.jsonl"), bodies.join("\n")).unwrap();
    let out = ringload(dir.path(), &["build", "d.jsonl", "--json"]);
    let built: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&built["cache"], &built["records"], &built["skipped"]), (&"miss".into(), &2.into(), &0.into()));
    for (n, body) in bodies.iter().enumerate() {
        let n = n.to_string();
        let out = ringload(dir.path(), &["inspect", "d.jsonl", "--record", &n, "--body"]);
        assert_eq!(text(&out.stdout), *body);
    }
    let key = built["key"].as_str().unwrap();
    let folder = format!("cache/{key}");
    for entry in [key, &key[..12], &folder] {
        let out = ringload(dir.path(), &["inspect", entry, "--record", "1", "--body"]);
        assert_eq!(text(&out.stdout), bodies[1], "{entry}: {}", text(&out.stderr));
        let out = ringload(dir.path(), &["inspect", entry, "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&shown["key"], &shown["records"]), (&built["key"], &2.into()));
    }
    let out = ringload(dir.path(), &["inspect", "d.jsonl", "--record", "2", "--body"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("2 records"), "{}", text(&out.stderr));
}

#[test]
fn a_config_file_sets_what_no_flag_sets() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let config = format!(
        "urls = '{}'\nrequests = 7\nbody = '{{}}'\nheader = ['X-A: 1', 'X-B: 2']\nconcurrency = 3\n",
        server.url()
    );
    std::fs::write(dir.path().join("c.toml"), config).unwrap();
    let out = ringload(dir.path(), &["run", "--config", "c.toml", "--json", "-q", "-c", "2"]);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&summary["requests"]["succeeded"], &summary["connections"]["asked"]), (&7.into(), &2.into()));
    let head = &server.requests()[0].head;
    assert!(head.contains("X-A: 1\r\n") && head.contains("X-B: 2\r\n"), "{head}");
    std::fs::write(dir.path().join("c.toml"), "concurency = 1\n").unwrap();
    let out = ringload(dir.path(), &["run", "builtin:", "--config", "c.toml"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("concurrency"), "{}", text(&out.stderr));
}

#[test]
fn a_saved_run_is_printed_compared_and_merged() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-n", "20", "-c", "2", "-o", "a"]);
    assert_eq!(code, 0, "{summary}");
    run(dir.path(), &server.url(), &["-b", "{}", "-n", "30", "-c", "2", "-o", "b", "--records", "jsonl"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("b/records.jsonl")).unwrap().lines().count(), 30);
    assert!(dir.path().join("a/records.parquet").exists());
    let out = ringload(dir.path(), &["report", "a"]);
    assert!(text(&out.stdout).contains("p99") && out.status.success());
    let out = ringload(dir.path(), &["report", "b", "--compare", "a"]);
    assert!(text(&out.stdout).contains("succeeded_rps"), "{}", text(&out.stdout));
    let out = ringload(dir.path(), &["merge", "a", "b", "-o", "ab", "--json"]);
    let merged: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(merged["requests"]["succeeded"], 50);
    assert!(dir.path().join("ab/summary.json").exists());
}

#[test]
fn the_target_serves_by_itself_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(["target", "--listen", "127.0.0.1:0", "mode=null", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut err = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut err, &mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    let (code, _) = run(dir.path(), &format!("http://{address}/"), &["-b", "{}", "-n", "50", "-c", "4"]);
    assert_eq!(code, 0);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let out = child.wait_with_output().unwrap();
    let counts: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(counts["requests"], 50);
}
