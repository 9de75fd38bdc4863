//! What a run would do, without doing it: for `--dry-run`.

use super::{COPY_ROOM_TOTAL, heads, leg, part};
use crate::{
    cache::View,
    data::{
        Result, limits,
        plan::{Plan, SendPath},
    },
    pace::{Free, Pick},
};

/// Due times shown of each worker.
const DUE_SHOWN: usize = 4;

/// A plan as its workers would begin it.
#[derive(Clone, Debug)]
pub struct Preview {
    /// One a worker.
    pub workers: Vec<Part>,
    /// How bodies would be sent, in words.
    pub send: String,
    /// Bytes by consumer, over all workers.
    pub memory: Vec<(&'static str, u64)>,
}

/// One worker's part.
#[derive(Clone, Debug)]
pub struct Part {
    /// Requests in flight, at most.
    pub slots: u32,
    /// Connections, at most.
    pub connections: u32,
    /// Requests that it would issue; none when no count ends the run.
    pub requests: Option<u64>,
    /// When its first requests are due, nanoseconds from the start; empty in a closed loop.
    pub first_due_ns: Vec<u64>,
}

/// Sets a run up as far as that takes no ring and no connection.
///
/// Errors: what would keep the run from beginning.
pub fn preview(plan: &Plan, view: &View) -> Result<Preview> {
    let phase = super::Phase { plan: plan.clone(), seamless: false, keep: None };
    let leg = leg(phase, view, plan.workers())?;
    let mut workers = Vec::with_capacity(plan.workers());
    let mut agendas = 0;
    for index in 0..plan.workers() {
        let share = |n: u64| if index < leg.active { Plan::share(n, index, leg.active) } else { 0 };
        let mut agenda = part(index, &leg, None)?.agenda;
        agendas += agenda.bytes();
        let slots = agenda.slots(0);
        let mut first_due_ns = Vec::new();
        // The clock of the preview stands at the due time of each in turn, and every answer is still out.
        let mut now = 0;
        while first_due_ns.len() < DUE_SHOWN {
            match agenda.pick(now, Free::all(true)) {
                Pick::Start(work) => match work.due_ns {
                    Some(due) => first_due_ns.push(due),
                    None => break,
                },
                Pick::At(due) => now = due,
                Pick::Wait | Pick::Done => break,
            }
        }
        workers.push(Part {
            slots,
            connections: share(u64::from(plan.connections)) as u32,
            requests: plan.stop.requests.map(share),
            first_due_ns,
        });
    }
    let connections: u64 = workers.iter().map(|w| u64::from(w.connections)).sum();
    let most = u64::from(workers.iter().map(|w| w.connections).max().unwrap_or(1));
    let room = (COPY_ROOM_TOTAL as u64 / most.max(1)).min(limits::COPY_BYTES_MAX as u64);
    let head = heads(plan, view)?.bytes_max() as u64;
    let buffers = |n: u32| (2 * n).clamp(limits::RECV_BUFFERS_MIN, limits::RECV_BUFFERS_MAX);
    let memory = vec![
        ("bodies (mapped)", view.stored_bytes()),
        ("send areas", connections * (head + room)),
        ("receive buffers", workers.iter().map(|w| u64::from(buffers(w.connections))).sum::<u64>() * 4096),
        ("schedules", agendas),
    ];
    Ok(Preview { workers, send: send_in_words(plan, view, room), memory })
}

fn send_in_words(plan: &Plan, view: &View, room: u64) -> String {
    let bodies = view.ids().map(|r| view.body_bytes(r)).filter(|&n| n > 0);
    let (mut small, mut large) = (0u64, 0u64);
    for n in bodies {
        if n <= room {
            small += 1;
        } else {
            large += 1;
        }
    }
    let local = plan.targets.iter().all(|t| t.local);
    let path = match plan.send {
        SendPath::Copy => "by vector from the map, copied by the kernel",
        SendPath::ZeroCopy => "by vector from the map, without copying where the socket can",
        SendPath::File => "by sendfile from the entry's file, where there is one",
        SendPath::Auto if local => "by vector from the map, copied by the kernel as the target is local",
        SendPath::Auto => "by vector from the map, without copying from 32 KiB on",
    };
    match (small, large) {
        (0, 0) => "none".to_owned(),
        (small, 0) => format!("{small} behind their heads, each in one buffer"),
        (0, large) => format!("{large} {path}"),
        (small, large) => format!("{small} behind their heads, each in one buffer; {large} {path}"),
    }
}
