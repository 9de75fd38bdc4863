//! `--config FILE`: a TOML table with the names of the long flags, turned into flags in front of those typed.
//!
//! What is typed wins, then the environment, then the file. A key is a flag without its dashes (`concurrency = 64`,
//! `fail-if = ["error_rate>1%"]`, `schedule = true`); `urls` stands for the URLs when none is typed.
//!
//! `[[phase]]` tables make the run play several loads, one after the other and over the same connections: each has what the
//! table above it says and what it says itself (`name`, and any load flag), and begins when the one before is drained, or with
//! `start = "seamless"` as soon as that one has issued everything.

use std::{ffi::OsString, path::Path};

use toml::{Table, Value};

use crate::data::{Error, Result};

/// The arguments of a run once a config file is put in.
#[derive(Clone, Debug)]
pub struct Configured {
    /// Those of the whole run.
    pub args: Vec<OsString>,
    /// Those of each phase; empty for a run of one.
    pub phases: Vec<PhaseArgs>,
    /// The config file; none without one.
    pub file: Option<OsString>,
}

/// One `[[phase]]`.
#[derive(Clone, Debug)]
pub struct PhaseArgs {
    /// Its name, or its number from 1.
    pub name: String,
    /// It does not wait for the one before to be drained.
    pub seamless: bool,
    /// All arguments, those of the whole run included.
    pub args: Vec<OsString>,
}

/// The arguments with those of a config file put in, when there is one.
///
/// Errors: a file that cannot be read or is no TOML, a key that is no flag, a value that no flag takes.
pub fn with_config(args: &[OsString], command: &clap::Command) -> Result<Configured> {
    let plain = || Ok(Configured { args: args.to_vec(), phases: Vec::new(), file: None });
    let Some(path) = config_of(args) else { return plain() };
    let Some(at) = args.iter().position(|a| a == "run") else { return plain() };
    let Some(run) = command.find_subcommand("run") else { return plain() };
    let file = path.clone();
    let path = Path::new(&path);
    let text = std::fs::read_to_string(path).map_err(|e| Error::file("cannot read the config", path, e))?;
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        Error::usage(format!("{}: {}", path.display(), e.to_string().trim_end().replace('\n', "\n  ")))
    })?;
    let mut base = args[..=at].to_vec();
    for (key, value) in table.iter().filter(|(key, _)| *key != "phase") {
        add(&mut base, path, key, value, run, args)?;
    }
    let mut phases: Vec<PhaseArgs> = Vec::new();
    for (i, value) in tables(&table, path)?.into_iter().enumerate() {
        let phase = phase(i, value, &base, path, run, args)?;
        if phases.iter().any(|p| p.name == phase.name) {
            return Err(Error::usage(format!("{}: phase '{}' is there twice", path.display(), phase.name)));
        }
        phases.push(phase);
    }
    for list in phases.iter_mut().map(|p| &mut p.args).chain([&mut base]) {
        list.extend_from_slice(&args[at + 1..]);
    }
    Ok(Configured { args: base, phases, file: Some(file) })
}

/// The `[[phase]]` tables.
fn tables<'a>(table: &'a Table, path: &Path) -> Result<Vec<&'a Table>> {
    let Some(value) = table.get("phase") else { return Ok(Vec::new()) };
    let list = value.as_array().and_then(|list| list.iter().map(Value::as_table).collect::<Option<Vec<_>>>());
    list.ok_or_else(|| Error::usage(format!("{}: phase: expected tables under [[phase]]", path.display())))
}

fn phase(
    i: usize,
    table: &Table,
    base: &[OsString],
    path: &Path,
    run: &clap::Command,
    args: &[OsString],
) -> Result<PhaseArgs> {
    let name = match table.get("name") {
        None => (i + 1).to_string(),
        Some(name) => name.as_str().map(str::to_owned).unwrap_or_default(),
    };
    let wrong = |what: String| Error::usage(format!("{}: phase {}: {what}", path.display(), i + 1));
    // A phase's folder in the run directory has its name.
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(sound) {
        return Err(wrong("name: expected letters, digits, '-', '_' and '.'".into()));
    }
    let seamless = match table.get("start").map(Value::as_str) {
        None | Some(Some("drained")) => false,
        Some(Some("seamless")) if i > 0 => true,
        Some(Some("seamless")) => return Err(wrong("start: there is no phase before the first; leave it out".into())),
        _ => return Err(wrong("start: expected \"drained\" or \"seamless\"".into())),
    };
    let mut out = base.to_vec();
    for (key, value) in table.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "start")) {
        let flag = key.replace('_', "-");
        // What shapes the load may differ from phase to phase; threads, cores and what is sent are the run's.
        let of_load = |a: &&clap::Arg| {
            a.get_long() == Some(flag.as_str())
                && (a.get_help_heading() == Some("Load") || matches!(flag.as_str(), "order" | "repeat"))
                && !matches!(flag.as_str(), "threads" | "cores" | "no-pin" | "cold" | "dry-run")
        };
        if run.get_arguments().any(|a| a.get_long() == Some(flag.as_str()))
            && run.get_arguments().find(of_load).is_none()
        {
            return Err(wrong(format!("{key}: belongs to the whole run; put it above the phases")));
        }
        add(&mut out, path, key, value, run, args)?;
    }
    Ok(PhaseArgs { name, seamless, args: out })
}

/// The value of `--config` among the arguments, or of its variable.
fn config_of(args: &[OsString]) -> Option<OsString> {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        if text == "--" {
            break;
        }
        if text == "--config" {
            return rest.next().cloned();
        }
        if let Some(value) = text.strip_prefix("--config=") {
            return Some(value.into());
        }
    }
    std::env::var_os("RINGLOAD_CONFIG").filter(|v| !v.is_empty())
}

fn add(
    out: &mut Vec<OsString>,
    path: &Path,
    key: &str,
    value: &Value,
    run: &clap::Command,
    args: &[OsString],
) -> Result<()> {
    let wrong = |what: &str| Error::usage(format!("{}: {key}: {what}", path.display()));
    let name = key.replace('_', "-");
    if name == "urls" || name == "url" {
        // Typed URLs win; whether one was typed is for the parser to say, so only those that look like one count.
        let typed = |a: &OsString| {
            let text = a.to_string_lossy();
            ["http://", "https://", "unix:", "builtin:"].iter().any(|scheme| text.starts_with(scheme))
        };
        if !args.iter().any(typed) {
            out.extend(
                texts(value).ok_or_else(|| wrong("expected a URL or a list of URLs"))?.into_iter().map(Into::into),
            );
        }
        return Ok(());
    }
    let Some(arg) = run.get_arguments().find(|a| a.get_long() == Some(name.as_str())) else {
        return Err(wrong(&format!("no such flag{}", nearest(&name, run))));
    };
    if name == "config" {
        return Err(wrong("a config file does not name another"));
    }
    let variable = format!("RINGLOAD_{}", name.to_ascii_uppercase().replace('-', "_"));
    if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
        return Ok(());
    }
    if arg.get_action().takes_values() {
        for text in texts(value).ok_or_else(|| wrong("expected a text, a number or a list of them"))? {
            out.push(format!("--{name}={text}").into());
        }
    } else {
        match value {
            Value::Boolean(true) => out.push(format!("--{name}").into()),
            Value::Boolean(false) => {}
            _ => return Err(wrong("expected true or false")),
        }
    }
    Ok(())
}

/// The texts of a value; none for a table or a date.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(n) => Some(vec![n.to_string()]),
        Value::Float(x) => Some(vec![x.to_string()]),
        Value::Boolean(b) => Some(vec![if *b { "on".to_owned() } else { "off".to_owned() }]),
        Value::Array(list) => list.iter().map(texts).collect::<Option<Vec<_>>>().map(|l| l.concat()),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// The flag that shares the longest beginning with a name, as a hint.
fn nearest(name: &str, run: &clap::Command) -> String {
    let shared = |long: &str| long.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    run.get_arguments()
        .filter_map(clap::Arg::get_long)
        .filter(|long| shared(long) >= 2)
        .max_by_key(|long| shared(long))
        .map_or(String::new(), |long| format!("; the nearest is {long}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(toml: &str, typed: &[&str]) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, toml).unwrap();
        let mut args: Vec<OsString> = vec!["ringload".into(), "run".into()];
        args.extend(typed.iter().map(OsString::from));
        args.extend(["--config".into(), path.into_os_string()]);
        let out = with_config(&args, &crate::cli::command())?.args;
        Ok(out[2..out.len() - 2].iter().map(|a| a.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn keys_become_flags_in_front_of_those_typed() {
        let toml = "concurrency = 8\nfail_if = ['error_rate>1%', 'rps<5']\nquiet = true\njson = false\ncatch-up = false\nurls = 'builtin:'";
        let got = expand(toml, &["-c", "4"]).unwrap();
        let want = [
            "--catch-up=off",
            "--concurrency=8",
            "--fail-if=error_rate>1%",
            "--fail-if=rps<5",
            "--quiet",
            "builtin:",
            "-c",
            "4",
        ];
        let mut sorted = got.clone();
        sorted.sort();
        let mut wanted: Vec<String> = want.iter().map(|s| (*s).to_owned()).collect();
        wanted.sort();
        assert_eq!(sorted, wanted);
        assert_eq!(got[got.len() - 2..], ["-c", "4"], "typed flags come last, and win");
        assert!(!expand(toml, &["http://h/"]).unwrap().contains(&"builtin:".to_owned()));
    }

    #[test]
    fn phases_have_what_stands_above_them_and_their_own() {
        let toml = "concurrency = 8\n[[phase]]\nname = 'low'\nrate = 5\n[[phase]]\nrate = '1k'\nstart = 'seamless'\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, toml).unwrap();
        let args: Vec<OsString> = ["ringload", "run", "-d", "1s", "--config"].map(OsString::from).into();
        let args = [args, vec![path.into_os_string()]].concat();
        let got = with_config(&args, &crate::cli::command()).unwrap().phases;
        let words = |p: &PhaseArgs| p.args.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>();
        assert_eq!(
            (got[0].name.as_str(), got[0].seamless, got[1].name.as_str(), got[1].seamless),
            ("low", false, "2", true)
        );
        assert_eq!(words(&got[0])[2..6], ["--concurrency=8", "--rate=5", "-d", "1s"]);
        assert_eq!(words(&got[1])[2..6], ["--concurrency=8", "--rate=1k", "-d", "1s"]);
    }

    #[test]
    fn wrong_configs_name_file_and_key() {
        for (toml, said) in [
            ("phase = 3", "expected tables under [[phase]]"),
            ("[[phase]]\nthreads = 3", "phase 1: threads: belongs to the whole run"),
            ("[[phase]]\nstart = 'seamless'", "no phase before the first"),
            ("[[phase]]\nname = 'a/b'", "phase 1: name: expected letters"),
            ("[[phase]]\nname = 'a'\n[[phase]]\nname = 'a'", "phase 'a' is there twice"),
            ("[[phase]]\nraet = 3", "the nearest is rate"),
            ("concurency = 3", "the nearest is concurrency"),
            ("quiet = 3", "expected true or false"),
            ("concurrency = { a = 1 }", "expected a text"),
            ("= 3", "c.toml"),
            ("config = 'x'", "does not name another"),
        ] {
            let error = expand(toml, &[]).unwrap_err();
            assert!(error.to_string().contains(said) && error.exit_code() == 2, "{toml}: {error}");
        }
    }
}
