//! How a build is done: with how many threads, when it stops, who is told what. Nothing in here can reach a byte.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::data::{Error, Result};

/// Time between two progress events.
const PROGRESS: Duration = Duration::from_millis(100);

/// What is told while something takes its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sentence for the user, once.
    Notice(String),
    /// How far a step is. At most ten a second.
    Progress {
        /// `reading`, `building`.
        step: &'static str,
        /// Bytes of the input so far.
        bytes: u64,
        /// Bytes of the input. The bytes so far may pass it when the input is compressed.
        total: u64,
    },
}

/// See the head of this file.
pub struct How<'a> {
    /// At least 1.
    pub threads: usize,
    cancel: &'a AtomicBool,
    tell: &'a (dyn Fn(Event) + Sync),
    bytes: AtomicU64,
    /// When progress was told last; none since the step began.
    told: Mutex<Option<Instant>>,
    notices: Mutex<Vec<String>>,
}

impl<'a> How<'a> {
    /// Stops soon after `cancel` is set; tells `tell`.
    pub fn new(threads: usize, cancel: &'a AtomicBool, tell: &'a (dyn Fn(Event) + Sync)) -> Self {
        Self {
            threads: threads.max(1),
            cancel,
            tell,
            bytes: AtomicU64::new(0),
            told: Mutex::new(None),
            notices: Mutex::new(Vec::new()),
        }
    }

    /// An error once it is to stop.
    pub(super) fn check(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Says a sentence, and keeps it.
    pub(super) fn notice(&self, text: String) {
        if let Ok(mut notices) = self.notices.lock() {
            if notices.contains(&text) {
                return;
            }
            notices.push(text.clone());
        }
        (self.tell)(Event::Notice(text));
    }

    /// Everything that was said.
    pub(super) fn take_notices(&self) -> Vec<String> {
        self.notices.lock().map(|mut n| std::mem::take(&mut *n)).unwrap_or_default()
    }

    /// A step begins: progress counts from 0.
    pub(super) fn begin(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        if let Ok(mut told) = self.told.lock() {
            *told = None;
        }
    }

    /// So many bytes more are done.
    pub(super) fn progress(&self, step: &'static str, more: u64, total: u64) {
        let bytes = self.bytes.fetch_add(more, Ordering::Relaxed) + more;
        // Whoever cannot have the lock at once leaves the telling to the next one.
        if let Ok(mut told) = self.told.try_lock()
            && told.is_none_or(|at| at.elapsed() >= PROGRESS)
        {
            *told = Some(Instant::now());
            (self.tell)(Event::Progress { step, bytes, total });
        }
    }
}
