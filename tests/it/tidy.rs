//! Rules of the tree that a compiler does not hold: the import order of the layers, and where unsafe code may stand.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The layers, in import order.
const LAYERS: [(&str, u8); 10] = [
    ("data", 0),
    ("sys", 1),
    ("formats", 2),
    ("wire", 2),
    ("cache", 3),
    ("pace", 4),
    ("engine", 5),
    ("report", 6),
    ("target", 6),
    ("cli", 7),
];

/// Imports that the numbers alone would allow, and the architecture does not.
const FORBIDDEN: [(&str, &str); 5] =
    [("formats", "sys"), ("wire", "sys"), ("formats", "wire"), ("wire", "formats"), ("report", "engine")];

fn sources() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut out);
    assert!(out.len() > 20, "the tree is not where it should be");
    out
}

fn layer_of(path: &Path) -> Option<&'static str> {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = inside.components().next()?.as_os_str().to_str()?;
    LAYERS.iter().map(|l| l.0).find(|l| *l == first)
}

fn number(layer: &str) -> u8 {
    LAYERS.iter().find(|l| l.0 == layer).unwrap().1
}

/// Every layer named after `crate::` in a file, nested braces included: `use crate::{data::X, sys::{..}}` names two.
fn imported(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split("crate::").skip(1) {
        if let Some(list) = part.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            let mut at_name = true;
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.push(std::mem::take(&mut name));
                        at_name = true;
                    }
                    ':' if depth == 0 => at_name = false,
                    c if depth == 0 && at_name && (c.is_alphanumeric() || c == '_') => name.push(c),
                    _ => {}
                }
            }
            found.push(name);
        } else {
            found.push(part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    found.retain(|name| LAYERS.iter().any(|l| l.0 == name));
    found
}

#[test]
fn the_reader_of_imports_reads_nested_lists() {
    let text = "use crate::{\n  data::{Error, Result},\n  sys::ring::Ring,\n};\nuse crate::wire::x; crate::pace::y()";
    assert_eq!(imported(text), ["data", "sys", "wire", "pace"]);
}

#[test]
fn modules_import_from_lower_layers_and_their_own_folder_only() {
    let mut wrong = Vec::new();
    for path in sources() {
        let Some(own) = layer_of(&path) else { continue };
        let text = fs::read_to_string(&path).unwrap();
        for other in imported(&text) {
            let up = other != own && number(&other) >= number(own);
            if up || FORBIDDEN.contains(&(own, other.as_str())) {
                wrong.push(format!("{}: {own} imports {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_is_in_sys_alone_and_each_place_says_why_it_is_sound() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let code: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        let places = code.iter().filter(|l| l.contains("unsafe ") || l.contains("allow(unsafe_code)")).count();
        if layer_of(&path) != Some("sys") {
            assert_eq!(places, 0, "{}", path.display());
        }
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, l)| !l.starts_with("//")) {
            // The sentence stands above the statement that the block is in.
            let above = lines[at.saturating_sub(8)..at].join("\n");
            if line.contains("unsafe {") {
                assert!(above.contains("// SAFETY:"), "{}:{}: no SAFETY", path.display(), at + 1);
            } else if line.contains("unsafe fn ") {
                assert!(above.contains("/// # Safety"), "{}:{}: no # Safety", path.display(), at + 1);
            }
        }
    }
}

#[test]
fn every_file_says_what_it_owns() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//!"), "{} does not open with //!", path.display());
    }
}

#[test]
fn long_files_say_why() {
    let mut wrong = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        let header: String = text.lines().take_while(|l| l.starts_with("//!")).collect();
        if code.lines().count() > 600 && !header.contains("long") {
            wrong.push(path.display().to_string());
        }
    }
    assert!(wrong.is_empty(), "over 600 lines without a reason in the header: {wrong:#?}");
}

#[test]
fn every_reported_case_names_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/reported-cases.md")).unwrap();
    let in_code: String = sources().iter().map(|p| fs::read_to_string(p).unwrap()).collect();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split('|').map(str::trim).collect())
        .filter(|r: &Vec<_>| r.len() == 5)
        .skip(2)
        .collect();
    assert_eq!(rows.len(), 31, "a row a case");
    for row in rows {
        for name in row[3].split(", ") {
            let (text, name) = match name.split_once("::") {
                Some((file, name)) => (fs::read_to_string(root.join(format!("tests/it/{file}.rs"))).unwrap(), name),
                None => (in_code.clone(), name),
            };
            assert!(text.contains(&format!("fn {name}(")), "case {}: no test {name}", row[1]);
        }
    }
}
