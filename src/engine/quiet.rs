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

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(false);
    }
}
