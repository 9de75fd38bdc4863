//! SIGINT, SIGTERM and SIGHUP: blocked in every thread, waited for in one, told through a flag. No handler code.
//!
//! Whoever is able to end by itself says so with [`hold`]: while that is held, the first signal only sets the flag of
//! [`asked`]. At any other time there is nothing to lose yet, and the program may be waiting in a call that nothing can
//! end (the open of a pipe that nobody writes to): the first signal ends the process.

use std::{
    sync::{
        OnceLock,
        atomic::{self, AtomicU8, AtomicU32, Ordering},
    },
    thread,
};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::data::{Error, Result};

static ASKED: AtomicU8 = AtomicU8::new(0);
static HELD: AtomicU32 = AtomicU32::new(0);
static QUIT: OnceLock<fn(Asked)> = OnceLock::new();

const INTERRUPT: u8 = 130;
const TERMINATE: u8 = 143;

/// What a signal asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGINT.
    Interrupt,
    /// SIGTERM, or the SIGHUP of a terminal that is gone.
    Terminate,
}

impl Asked {
    /// The exit status of the command-line contract.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => INTERRUPT,
            Self::Terminate => TERMINATE,
        }
    }
}

/// Blocks the signals in the calling thread (and so in all that it starts) and waits for them in a thread of its own. `quit`
/// says and tidies what there is to say and tidy before a signal ends the process outside any [`hold`]. A second signal ends
/// it whatever is held. To be called before any other thread; a second call does nothing.
pub fn watch(quit: fn(Asked)) -> Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    // Under nohup a terminal's end is to be survived.
    if !ignored(Signal::SIGHUP) {
        set.add(Signal::SIGHUP);
    }
    let refused = |what: String| Error::Environment {
        call: "signal set-up",
        what,
        cure: "start the program from a shell that leaves SIGINT and SIGTERM alone".into(),
    };
    if QUIT.set(quit).is_err() {
        return Ok(());
    }
    set.thread_block().map_err(|errno| refused(errno.to_string()))?;
    let wait = move || {
        loop {
            let asked = match set.wait() {
                Ok(Signal::SIGINT) => Asked::Interrupt,
                Ok(Signal::SIGTERM | Signal::SIGHUP) => Asked::Terminate,
                _ => continue,
            };
            if ASKED.swap(asked.exit_code(), Ordering::SeqCst) != 0 {
                std::process::exit(i32::from(asked.exit_code()));
            }
            if HELD.load(Ordering::SeqCst) == 0 {
                quit_now();
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(|e| refused(e.to_string()))?;
    Ok(())
}

/// Ends the process for the signal that came. Returns when there was none. Called after a [`Hold`] was dropped it misses none:
/// one that came while it was held is seen here, and one that comes later ends the process by itself.
pub fn quit_now() {
    atomic::fence(Ordering::SeqCst);
    if let (Some(asked), Some(quit)) = (asked(), QUIT.get()) {
        quit(asked);
        std::process::exit(i32::from(asked.exit_code()));
    }
}

/// See [`hold`].
#[derive(Debug)]
pub struct Hold(());

/// While this lives, the first signal sets the flag of [`asked`] and does no more: its owner looks there, and ends in order.
#[must_use]
pub fn hold() -> Hold {
    HELD.fetch_add(1, Ordering::SeqCst);
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::SeqCst);
    }
}

/// True when this process was started with a signal ignored.
fn ignored(signal: Signal) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only fills the one given, which is large enough for it.
    let _ = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: an action of zeros is a valid one, and so is what the call left.
    let handler = unsafe { now.assume_init() }.sa_sigaction;
    handler == libc::SIG_IGN
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
        TERMINATE => Some(Asked::Terminate),
        _ => Some(Asked::Interrupt),
    }
}
