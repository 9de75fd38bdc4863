//! SIGINT and SIGTERM: blocked in every thread, waited for in one, told through a flag. No handler code.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    thread,
};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::data::{Error, Result};

static ASKED: AtomicU8 = AtomicU8::new(0);

/// What a signal asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Blocks both signals in the calling thread (and so in all that it starts) and waits for them in a thread of its own.
/// The first one sets the flag of [`asked`]; a second one ends the process at once. Call once, before any other thread.
pub fn watch() -> Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    let refused = |what: String| Error::Environment {
        call: "signal set-up",
        what,
        cure: "start the program from a shell that leaves SIGINT and SIGTERM alone".into(),
    };
    set.thread_block().map_err(|errno| refused(errno.to_string()))?;
    let wait = move || {
        loop {
            let code = match set.wait() {
                Ok(Signal::SIGINT) => 130u8,
                Ok(Signal::SIGTERM) => 143,
                _ => continue,
            };
            if ASKED.swap(code, Ordering::Relaxed) != 0 {
                std::process::exit(i32::from(code));
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(|e| refused(e.to_string()))?;
    Ok(())
}

/// Leaves a write beyond the limit of a file's size (`ulimit -f`) an error of that write: SIGXFSZ would end the process, and
/// with it all that could be said or tidied up.
pub fn ignore_file_limit() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring a signal installs no code.
    let _ = unsafe { sigaction(Signal::SIGXFSZ, &ignore) };
}

/// What a signal asked for so far.
#[inline]
pub fn asked() -> Option<Asked> {
    match ASKED.load(Ordering::Relaxed) {
        0 => None,
        143 => Some(Asked::Terminate),
        _ => Some(Asked::Interrupt),
    }
}
