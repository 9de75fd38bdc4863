//! Marks the stretch of a worker thread's life in which it must not allocate, so that a test's allocator can hold it to that.

use std::cell::Cell;

thread_local! {
    // Const-initialised and without a destructor: reading it never allocates, so an allocator may.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// True on a worker thread between the start of the load and its end.
pub fn is_quiet() -> bool {
    QUIET.get()
}

/// Begins the stretch; it ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Quiet(());

impl Quiet {
    pub(super) fn begin() -> Self {
        QUIET.set(true);
        Self(())
    }
}

/// Takes a call out of the stretch: one into rustls, which allocates when a session is made and for each record. Only `tls` may
/// hold one, and only around such calls.
#[derive(Debug)]
pub(super) struct Pause(bool);

impl Pause {
    pub(super) fn begin() -> Self {
        Self(QUIET.replace(false))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        QUIET.set(self.0);
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(false);
    }
}
