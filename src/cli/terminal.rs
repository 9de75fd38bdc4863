//! What reaches the terminal: results on stdout, talk on stderr. A closed pipe is no error.

use std::io::{self, IsTerminal, Write};

use super::output;
use crate::{
    data::{Error, Result},
    sys::signal,
};

/// Writes a result to stdout. A reader that went away (`| head`) is no error.
///
/// Errors: any other failure to write.
pub fn result(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// As [`result`], for bytes that need not be text.
///
/// Errors: as [`result`].
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::file("cannot write to", std::path::Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Says something on stderr, one line. Nobody listening is no error.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "ringload: {text}");
}

/// Says an error: its first line after the program's name, the rest as it is.
pub fn say_error(error: &Error) {
    say(&error.to_string());
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let _ = writeln!(io::stderr().lock(), "caused by: {inner}");
        cause = inner.source();
    }
}

/// Hears signals from now on: see [`signal::watch`].
///
/// Errors: as there.
pub fn watch_signals() -> Result<()> {
    signal::watch(|asked| {
        say_error(&match asked {
            signal::Asked::Interrupt => Error::Interrupted,
            signal::Asked::Terminate => Error::Terminated,
        });
        output::remove_unfinished();
    })
}

/// True when stdout may be coloured: a terminal that is not dumb, and no `NO_COLOR`.
pub fn colour() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// True when stderr is a terminal: progress is shown there by default.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A line on stderr that is written over, on a terminal, or written again, elsewhere.
#[derive(Debug)]
pub struct ProgressLine {
    over: bool,
    shown: bool,
}

impl ProgressLine {
    /// A line for this stderr.
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        Self { over: stderr_is_terminal() && !dumb, shown: false }
    }

    /// Shows a text in place of the one before.
    pub fn show(&mut self, text: &str) {
        let mut err = io::stderr().lock();
        let _ =
            if self.over { write!(err, "\r\x1b[2K{text}").and_then(|()| err.flush()) } else { writeln!(err, "{text}") };
        self.shown = true;
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.over && std::mem::take(&mut self.shown) {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[2K").and_then(|()| err.flush());
        }
    }
}

impl Default for ProgressLine {
    fn default() -> Self {
        Self::new()
    }
}
