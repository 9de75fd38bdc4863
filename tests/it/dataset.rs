//! Every dataset format and API from a file to bodies, held to goldens that `scripts/fixtures` writes without ringload; and
//! wrong files, each of which must be refused with a message that says where, what and what to do.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::ringload_in;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// Runs a command on an input of `tests/data`, from there.
fn on(cache: &Path, command: &str, golden: &Value, input: &str, more: &[&str]) -> std::process::Output {
    let mut args = vec![command, input, "--format", golden["format"].as_str().unwrap()];
    args.extend(words(&golden["args"]));
    args.extend(more);
    ringload_in(&data(), cache, &args)
}

fn goldens() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for folder in std::fs::read_dir(data()).unwrap().flatten().filter(|f| f.path().is_dir()) {
        let files = std::fs::read_dir(folder.path()).unwrap().flatten().map(|f| f.path());
        all.extend(files.filter(|f| f.to_string_lossy().ends_with(".want.json")));
    }
    all.sort();
    all
}

fn body_of(record: &Value) -> Vec<u8> {
    match record["body"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => ringload::data::base64::decode(record["body_base64"].as_str().unwrap()).unwrap(),
    }
}

/// Holds what `inspect --json` shows of a record to its golden; what the golden does not give must not be there.
fn hold_facts(place: &str, record: &Value, shown: &Value) {
    let names = [("turn", "turn"), ("due_ms", "due_ms"), ("delay_ms", "delay_ms"), ("after", "predecessors")];
    for (name, here) in names {
        let nothing = if name == "after" { Value::Array(Vec::new()) } else { Value::Null };
        let want = record.get(name).cloned().unwrap_or(nothing);
        let same = match (want.as_f64(), shown[here].as_f64()) {
            (Some(want), Some(got)) => want == got,
            _ => want == shown[here],
        };
        assert!(same, "{place}: {name} is {}, expected {want}", shown[here]);
    }
    if let Some(session) = record["session"].as_str() {
        assert_eq!(shown["session"], session, "{place}");
    }
    for (name, here) in [("cap", "output_cap"), ("input_tokens", "input_tokens"), ("background", "background")] {
        if let Some(want) = record.get(name) {
            assert_eq!(&shown[here], want, "{place}: {name}");
        }
    }
    for name in ["images", "audios", "videos"] {
        if let Some(want) = record.get(name) {
            assert_eq!(&shown[name], want, "{place}: {name}");
        }
    }
}

/// One dataset: the count, and of each record its bytes and what the index knows.
fn hold(file: &Path) {
    let golden: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let folder = file.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let input = format!("{folder}/{}", golden["input"].as_str().unwrap());
    let records = golden["records"].as_array().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let built = on(cache.path(), "build", &golden, &input, &["--json"]);
    assert!(built.status.success(), "{input}: {}", text(&built.stderr));
    let report: Value = serde_json::from_slice(&built.stdout).unwrap();
    assert_eq!(report["records"], records.len(), "{input}");
    for (k, record) in records.iter().enumerate() {
        let (place, number) = (format!("{input} record {k}"), k.to_string());
        let got = on(cache.path(), "inspect", &golden, &input, &["--record", &number, "--body"]).stdout;
        let want = body_of(record);
        assert!(got == want, "{place}\n got {}\nwant {}", text(&got), text(&want));
        let shown = on(cache.path(), "inspect", &golden, &input, &["--record", &number, "--json"]).stdout;
        hold_facts(&place, record, &serde_json::from_slice(&shown).unwrap());
    }
}

#[test]
fn every_format_and_api_gives_the_bodies_that_its_schema_says() {
    let all = goldens();
    assert!(all.len() >= 40, "{} goldens", all.len());
    for format in ringload::formats::Format::ALL {
        assert!(all.iter().any(|f| f.parent().unwrap().ends_with(format.name())), "no fixture of {}", format.name());
    }
    // Most of the time is that of starting the program: two at a time.
    std::thread::scope(|scope| {
        for half in all.chunks(all.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(|file| hold(file)));
        }
    });
}

#[test]
fn wrong_files_of_more_than_fifty_kinds_are_refused_with_place_field_and_cure() {
    let table: Value = serde_json::from_slice(&std::fs::read(data().join("wrong/table.json")).unwrap()).unwrap();
    let table = table.as_array().unwrap();
    assert!(table.len() >= 50, "{} wrong files", table.len());
    let mut wrong = Vec::new();
    for row in table {
        let input = format!("wrong/{}", row["input"].as_str().unwrap());
        let cache = tempfile::tempdir().unwrap();
        let out = on(cache.path(), "build", row, &input, &[]);
        let says = text(&out.stderr);
        let place = match row["line"].as_u64() {
            Some(line) => format!("{input}:{line}: "),
            None => input.clone(),
        };
        let missing: Vec<_> =
            words(&row["says"]).into_iter().chain([place.as_str()]).filter(|word| !says.contains(word)).collect();
        let left = std::fs::read_dir(cache.path())
            .map_or(0, |dir| dir.flatten().filter(|f| !f.file_name().to_string_lossy().ends_with(".lock")).count());
        let one_line = says.lines().next().is_some_and(|line| line.starts_with("ringload: ") && line.len() < 600);
        if out.status.code() != Some(2) || !missing.is_empty() || says.contains("panicked") || !one_line {
            wrong.push(format!("{input}: exit {:?}, missing {missing:?}, {left} left: {says}", out.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}
