//! What is said to a wrong command line: the right flag, also to those who bring another tool's.

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::terminal;

/// Flags of other tools, and the name used here.
const FOREIGN: [(&str, &str); 14] = [
    ("-z", "-d, --duration"),
    ("-D", "-B, --body-file"),
    ("-p", "--path, or -c, --concurrency for parallel connections"),
    ("-T", "--timeout, or -H 'Content-Type: ...' for a content type"),
    ("-s", "--timeout, or a dataset with -f for a script"),
    ("-L", "the latency table, which is always printed"),
    ("--latency", "the latency table, which is always printed"),
    ("-A", "-H, --header 'Accept: ...'"),
    ("--rps", "-R, --rate"),
    ("--request-rate", "-R, --rate"),
    ("--request-count", "-n, --requests"),
    ("--input-file", "-f, --dataset"),
    ("--custom-dataset-type", "--format"),
    ("--fixed-schedule", "--schedule"),
];

/// Prints a clap error, or the help or version that was asked for. `typed` are the arguments before those of `config`.
pub fn show(error: &clap::Error, typed: &[OsString], config: Option<&OsStr>) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = if terminal::colour() { error.render().ansi().to_string() } else { error.render().to_string() };
            return match terminal::result(&text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => ExitCode::from(error.exit_code()),
            };
        }
        _ => {}
    }
    let text = error.render().to_string();
    terminal::say(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    if let Some(from) = source(error, typed, config) {
        terminal::say(&from);
    }
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some((_, here)) = FOREIGN.iter().find(|(foreign, _)| flag == foreign)
    {
        terminal::say(&format!("{flag} is another tool's; here it is {here}"));
    }
    ExitCode::from(2)
}

/// Where a wrong value came from, when nobody typed it: an environment variable, or the config file.
fn source(error: &clap::Error, typed: &[OsString], config: Option<&OsStr>) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let name = flag.trim_start_matches('-').split([' ', '=']).next()?;
    if typed.iter().any(|a| a.to_string_lossy().contains(value.as_str())) {
        return None;
    }
    let variable = format!("RINGLOAD_{}", name.to_ascii_uppercase().replace('-', "_"));
    if std::env::var(&variable).is_ok_and(|set| set.contains(value.as_str())) {
        return Some(format!("the value comes from the environment variable {variable}"));
    }
    config.map(|file| format!("the value comes from {}: {name}", file.to_string_lossy()))
}
