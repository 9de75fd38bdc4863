//! `ringload calibrate` and the share of the ceiling that later runs tell: the program itself, for a moment a cell.

use std::fs;

use serde_json::Value;

use crate::support::ringload;

fn json(out: &std::process::Output) -> Value {
    let said = String::from_utf8_lossy(&out.stderr);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("no JSON ({e}), {:?}: {said}", out.status))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn a_calibrated_machine_tells_the_share_of_its_ceiling_and_only_of_runs_of_that_kind() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state/calibration.json");
    let keep = ["--calibration", file.to_str().unwrap()];
    let calibrate = |more: &[&str]| ringload(dir.path(), &[&["calibrate", "-d", "100ms"], &keep[..], more].concat());
    if cores() < 2 {
        let out = calibrate(&[]);
        assert_eq!(out.status.code(), Some(3), "one core cannot be measured");
        return;
    }
    let out = calibrate(&["--sizes", "0,4KiB", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let cells = json(&out)["cells"].clone();
    assert_eq!((&cells[0]["body_bytes"], &cells[1]["body_bytes"]), (&0.into(), &4096.into()));
    assert!(cells.as_array().unwrap().iter().all(|c| c["requests_per_s"].as_f64().unwrap() > 0.0), "{cells}");

    let run = |more: &[&str]| {
        let base = ["run", "builtin:", "-t", "1", "-n", "2000", "-q"];
        ringload(dir.path(), &[&base[..], &keep[..], more].concat())
    };
    let summary = json(&run(&["--json", "-b", "{\"n\":1}"]));
    let client = &summary["client"];
    let (share, rps) = (client["share_of_ceiling"].as_f64().unwrap(), client["ceiling_rps"].as_f64().unwrap());
    assert!((share - summary["rate"]["succeeded_rps"].as_f64().unwrap() / rps).abs() < 1e-9, "{client}");
    assert!(client["ceiling_note"].as_str().unwrap().contains("7 bytes"), "{client}");
    assert!(String::from_utf8_lossy(&run(&[]).stdout).contains("ringload calibrate"));

    for other in [&["--reuse", "never"][..], &["-b", &"x".repeat(5000)]] {
        let client = json(&run(&[&["--json"], other].concat()))["client"].clone();
        assert!(client["share_of_ceiling"].is_null() && client["ceiling_rps"].is_null(), "{other:?}: {client}");
    }

    // Another machine's figures are not this one's.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"kernel\": \"", "\"kernel\": \"not-")).unwrap();
    assert!(json(&run(&["--json"]))["client"]["share_of_ceiling"].is_null());

    // A damaged file costs the share, a line that names the cure, and nothing else; the next calibration writes it anew.
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    let out = run(&["--json"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(json(&out)["client"]["share_of_ceiling"].is_null());
    assert!(out.status.success() && said.contains("calibration.json") && said.contains("ringload calibrate"), "{said}");
    assert_eq!(calibrate(&["--sizes", "0"]).status.code(), Some(0));
    assert!(json(&run(&["--json"]))["client"]["share_of_ceiling"].is_f64());
}

#[test]
fn sizes_and_cores_that_cannot_be_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (args, named) in [
        (&["--sizes", "1KiB,nonsense"][..], "nonsense"),
        (&["--sizes", "8"], "64 bytes"),
        (&["--cores", "99999"], "--cores"),
        (&["-d", "0"], "-d"),
    ] {
        let file = dir.path().join("c.json");
        let out = ringload(dir.path(), &[&["calibrate", "--calibration", file.to_str().unwrap()], args].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let one_core = cores() < 2 && args[0] == "--cores";
        assert!(out.status.code() == Some(2) || one_core, "{args:?}: {said}");
        assert!(said.contains(named) || one_core, "{args:?}: {said}");
        assert!(!file.exists());
    }
}
