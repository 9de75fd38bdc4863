//! Phases of a run: what a worker has of each, how it turns from one to the next, and where the workers meet in between.
//!
//! The part of the phase that is played stands in the worker's own fields, so nothing else knows of phases. A request that an
//! earlier phase left in flight is looked at with that phase's part in the fields ([`Worker::enter`]).

use std::sync::Arc;

use super::{
    conn::{State, flag, mark},
    io::Io,
    live::{Ends, Meeting},
    rows::Kept,
    tally::Tally,
    worker::Worker,
};
use crate::{
    data::{ConnId, Nanos, Result, plan::Plan, results::EndedBy},
    pace::{Agenda, Graph, Roots},
};

/// One phase of a run, read-only but for the counters.
#[derive(Debug)]
pub(super) struct Leg {
    pub plan: Plan,
    pub roots: Arc<Roots>,
    pub graph: Option<Arc<Graph>>,
    /// The next phase begins when all of this one is issued; else when nothing of it is in flight.
    pub seamless: bool,
    /// Workers that have a part in it: the first so many.
    pub active: usize,
    /// One a worker.
    pub ends: Vec<Ends>,
    pub meeting: Meeting,
}

/// What a worker has of one phase. While the phase is played (or one of its requests is looked at) all of it stands in the
/// worker's own fields of the same names.
#[derive(Debug)]
pub(super) struct Part {
    pub agenda: Agenda,
    pub tally: Tally,
    pub rows: Option<Kept>,
    /// When it began; none before.
    pub start: Nanos,
    pub ended: Option<EndedBy>,
    pub ended_at: Nanos,
    /// Requests without a first token, at most.
    pub prefill_max: u32,
    /// Which connection each session instance holds; empty where sessions hold none.
    pub holds: Vec<u32>,
}

impl<I: Io> Worker<'_, I> {
    /// Puts the part of another phase into the worker's fields.
    #[inline]
    pub(super) fn switch(&mut self, to: usize) {
        if self.phase == to {
            return;
        }
        let Some(part) = self.parked[to].take() else { unreachable!("only the part in the fields is not parked") };
        self.parked[self.phase] = Some(Part {
            agenda: std::mem::replace(&mut self.agenda, part.agenda),
            tally: std::mem::replace(&mut self.tally, part.tally),
            rows: std::mem::replace(&mut self.rows, part.rows),
            start: std::mem::replace(&mut self.start, part.start),
            ended: std::mem::replace(&mut self.ended, part.ended),
            ended_at: std::mem::replace(&mut self.ended_at, part.ended_at),
            prefill_max: std::mem::replace(&mut self.prefill_max, part.prefill_max),
            holds: std::mem::replace(&mut self.holds, part.holds),
        });
        self.phase = to;
    }

    /// Switches to the phase of a slot's request; returns the one to switch back to.
    #[inline]
    pub(super) fn enter(&mut self, conn: ConnId) -> usize {
        if self.conns[conn.index()].is(mark::OLD) {
            self.switch(self.trips[conn.index()].phase as usize);
        }
        self.playing
    }

    /// Waits for the other workers at the end of a phase, and turns to the next. Returns its start; none when there is none, or
    /// when the run is to stop.
    pub(super) fn meet(&mut self) -> Result<Option<Nanos>> {
        /// How long a wait for the others is between two looks at them.
        const LOOK_NS: u64 = 500_000;
        let shared = self.shared;
        let next = self.phase + 1;
        if next == shared.legs.len() {
            return Ok(None);
        }
        let leg = &shared.legs[self.phase];
        // A phase that time ended is over at that time, not when this worker noticed.
        let end = match (self.ended, self.agenda.stop_ns()) {
            (Some(EndedBy::Duration), Some(stop)) if leg.seamless => self.start.plus(stop),
            _ => self.ended_at,
        };
        leg.meeting.arrive(end.0);
        let end = loop {
            if shared.control.asked().is_some() {
                return Ok(None);
            }
            // A phase that has nothing due any more before its time is over goes on until it is.
            let left = match leg.meeting.ended(shared.plan.workers()) {
                None => LOOK_NS,
                Some(end) => match Nanos(end).since(shared.clock.now()) {
                    0 => break Nanos(end),
                    left => left.min(LOOK_NS),
                },
            };
            self.io.submit_and_wait(left)?;
            self.look();
        };
        self.turn_to(next, self.shared.clock.now().plus(leg.plan.stop.drain_ns));
        Ok(Some(end))
    }

    /// Makes a phase the one that is played. What is in flight stays with its own, and is cut at `until`.
    fn turn_to(&mut self, phase: usize, until: Nanos) {
        for slot in 0..self.conns.len() {
            let c = &mut self.conns[slot];
            if c.is(mark::HELD) {
                self.begin_close(ConnId(slot as u32));
            } else if c.state == State::Busy || c.has(flag::WAITED) {
                c.marks |= mark::OLD;
                self.old_until = until;
            }
        }
        self.switch(phase);
        self.playing = phase;
    }

    /// The ring, and the parts of all phases in their order, after [`Worker::run`].
    pub fn into_parts(mut self) -> (I, Vec<Part>) {
        self.parked[self.phase] = Some(Part {
            agenda: self.agenda,
            tally: self.tally,
            rows: self.rows,
            start: self.start,
            ended: self.ended,
            ended_at: self.ended_at,
            prefill_max: self.prefill_max,
            holds: self.holds,
        });
        (self.io, self.parked.into_iter().flatten().collect())
    }
}
