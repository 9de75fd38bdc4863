//! What is said to a wrong command line: the right flag, also to those who bring another tool's.

use std::process::ExitCode;

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

/// Prints a clap error, or the help or version that was asked for.
pub fn show(error: &clap::Error) -> ExitCode {
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
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some((_, here)) = FOREIGN.iter().find(|(foreign, _)| flag == foreign)
    {
        terminal::say(&format!("{flag} is another tool's; here it is {here}"));
    }
    ExitCode::from(2)
}
