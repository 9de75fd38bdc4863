//! What happens to connection slots: taken, opened, kept, closed, timed out. The file is a little long, as what may follow what is
//! read as one.

use std::ops::Range;

use super::{
    conn::{State, flag, mark},
    io::Io,
    worker::Worker,
};
use crate::{
    data::{
        ConnId, Nanos, limits,
        metric::Metric,
        net::UrlStrategy,
        outcome::{ErrorClass, Outcome},
        plan::Reuse,
    },
    sys::ring::Op,
};

/// No connection is held.
pub(super) const NOTHING: u32 = u32::MAX;

impl<I: Io> Worker<'_, I> {
    /// An operation of a slot was handed to the ring.
    #[inline]
    pub(super) fn asked(&mut self, conn: ConnId, of: u16) {
        let c = &mut self.conns[conn.index()];
        c.in_kernel += 1;
        c.set(of);
    }

    /// True when a request could be started: a slot is idle, or one could be opened.
    #[inline]
    pub(super) fn any_slot(&mut self) -> bool {
        if self.shared.plan.net.strategy == UrlStrategy::Session {
            // Which target the next request goes to is not known yet; any slot can be had for it.
            return !self.closed.is_empty() || (0..self.idle.len()).any(|target| self.has_idle(target));
        }
        let target = self.peer(self.next_target);
        if self.has_idle(target) || !self.closed.is_empty() {
            return true;
        }
        // Each target gets its turn: an idle connection of another one makes room, and its slot is free once it is closed.
        for other in (0..self.idle.len()).filter(|&other| other != target) {
            if self.has_idle(other)
                && let Some(slot) = self.idle[other].pop()
            {
                self.conns[slot as usize].clear(flag::LISTED);
                self.begin_close(ConnId(slot));
                break;
            }
        }
        !self.closed.is_empty()
    }

    /// The ring of idle connections that serve a target: targets of one origin share them.
    #[inline]
    pub(super) fn peer(&self, target: u16) -> usize {
        usize::from(self.shared.peers[usize::from(target)])
    }

    /// True when a target has an idle slot; drops from its ring what is idle no more.
    #[inline]
    fn has_idle(&mut self, target: usize) -> bool {
        while let Some(slot) = self.idle[target].front() {
            if self.conns[slot as usize].state == State::Idle {
                return true;
            }
            self.idle[target].pop();
            self.conns[slot as usize].clear(flag::LISTED);
        }
        false
    }

    /// Takes a slot for the request of a unit, and says to which target it goes: its session's own connection, or one to the
    /// target whose turn it is. An idle connection goes before a new one; when there is neither, an idle one of another target
    /// makes room.
    #[inline]
    pub(super) fn take_slot(&mut self, instance: u32, unit: u64) -> Option<(ConnId, u16)> {
        if let Some(conn) = self.held(instance) {
            self.let_go(conn);
            return Some((conn, self.conns[conn.index()].target));
        }
        let targets = self.idle.len();
        let target = match self.shared.plan.net.strategy {
            UrlStrategy::RoundRobin => self.next_target as usize,
            // All turns of a session have the unit of its root.
            UrlStrategy::Session => (unit % targets as u64) as usize,
        };
        self.next_target = ((target + 1) % targets) as u16;
        let peer = self.peer(target as u16);
        let slot = if self.has_idle(peer) {
            self.idle[peer].pop()
        } else if let Some(slot) = self.closed.pop() {
            Some(slot)
        } else {
            let other = (0..targets).find(|&other| self.has_idle(other))?;
            self.idle[other].pop()
        }?;
        self.conns[slot as usize].clear(flag::LISTED);
        Some((ConnId(slot), target as u16))
    }

    /// Opens a slot's connection to a target, at the address that answered last.
    pub(super) fn open(&mut self, conn: ConnId, target: u16, now: Nanos) {
        let trip = &mut self.trips[conn.index()];
        trip.address = self.good_address[target as usize];
        trip.tried = 0;
        trip.uses = 0;
        trip.keep_ns = u64::MAX;
        trip.connect_began = now;
        self.conns[conn.index()].target = target;
        self.connect(conn, now);
    }

    /// Connects to the slot's current address.
    fn connect(&mut self, conn: ConnId, now: Nanos) {
        let (base, count) = self.shared.addresses[self.conns[conn.index()].target as usize];
        let trip = &mut self.trips[conn.index()];
        trip.tried += 1;
        let address = base + trip.address % count;
        let c = &mut self.conns[conn.index()];
        c.state = State::Connecting;
        c.clear(flag::KEPT | flag::LAST | flag::RECV | flag::SEND | flag::STARVED);
        let generation = c.generation;
        match self.io.connect(conn, generation, address as usize) {
            Ok(()) => {
                self.conns[conn.index()].in_kernel += 1;
                let t = &self.shared.plan.timeouts;
                // A request that is sent again began earlier.
                let c = &self.conns[conn.index()];
                let whole = if c.start.is_some() { c.start.plus(t.request_ns) } else { Nanos::NONE };
                let deadline = trip.connect_began.plus(t.connect_ns).min(whole);
                self.deadlines[conn.index()] = deadline;
                self.next_sweep = self.next_sweep.min(deadline);
            }
            Err(error) => self.connect_failed(conn, error.raw_os_error().unwrap_or(0), now),
        }
    }

    /// The connect has ended.
    pub(super) fn connected(&mut self, conn: ConnId, result: i32, now: Nanos) {
        if result < 0 {
            return self.connect_failed(conn, -result, now);
        }
        let trip = &mut self.trips[conn.index()];
        let took = now.since(trip.connect_began);
        let c = &mut self.conns[conn.index()];
        let (target, generation) = (c.target, c.generation);
        if c.has(flag::WAITED) {
            trip.connect_ns = took;
        }
        trip.tls_began = now;
        self.good_address[target as usize] = trip.address;
        self.tally.result.series[Metric::ConnectTime as usize].record(took);
        self.io.recv(conn, generation);
        self.asked(conn, flag::RECV);
        match self.tls.open(conn, self.shared.tls.as_ref(), target) {
            Ok(false) => self.established(conn, now),
            Ok(true) => {
                self.conns[conn.index()].state = State::Handshaking;
                self.shake(conn, now);
            }
            Err(_) => self.handshake_failed(conn, "", now),
        }
    }

    /// The handshake goes on: what rustls has to say is sent, one send at a time. The connection is open when both sides have
    /// finished and nothing is left to send. The deadline is still that of the connect.
    pub(super) fn shake(&mut self, conn: ConnId, now: Nanos) {
        if !self.conns[conn.index()].has(flag::SEND) {
            self.send_tls(conn, now);
        }
        if self.tls.is_handshaking(conn) || self.conns[conn.index()].has(flag::SEND) {
            return;
        }
        let trip = &mut self.trips[conn.index()];
        let took = now.since(trip.tls_began);
        if self.conns[conn.index()].has(flag::WAITED) {
            trip.tls_ns = took;
        }
        self.tally.result.series[Metric::TlsTime as usize].record(took);
        self.tally.result.connections.resumed += u64::from(self.tls.is_resumed(conn));
        self.established(conn, now);
    }

    /// The handshake failed, and the request that waited for it. Empty words are those of rustls.
    #[cold]
    pub(super) fn handshake_failed(&mut self, conn: ConnId, why: &'static str, now: Nanos) {
        self.tally.result.connections.failed += 1;
        if self.conns[conn.index()].has(flag::WAITED) {
            self.end_request(conn, Outcome::Failed(ErrorClass::Tls), why, now);
        }
        self.begin_close(conn);
    }

    /// A connection can carry requests now.
    fn established(&mut self, conn: ConnId, now: Nanos) {
        self.counts.connections += 1;
        let connections = &mut self.tally.result.connections;
        connections.opened += 1;
        connections.established_peak = connections.established_peak.max(self.counts.connections);
        self.deadlines[conn.index()] = Nanos::NONE;
        let c = &mut self.conns[conn.index()];
        c.state = State::Idle;
        if c.has(flag::WAITED) {
            self.begin(conn, now);
        } else {
            self.list_idle(conn);
        }
    }

    /// The connect failed: the target's next address is tried, then the request that waited fails.
    pub(super) fn connect_failed(&mut self, conn: ConnId, errno: i32, now: Nanos) {
        let class = match errno {
            libc::ECONNREFUSED => ErrorClass::ConnectRefused,
            // A unix socket file that is not there is a server that does not listen.
            libc::ENOENT => ErrorClass::ConnectRefused,
            libc::ETIMEDOUT => ErrorClass::ConnectTimeout,
            libc::EADDRNOTAVAIL | libc::EADDRINUSE => ErrorClass::NoLocalPort,
            _ => ErrorClass::ConnectFailed,
        };
        let (base, addresses) = self.shared.addresses[self.conns[conn.index()].target as usize];
        if class != ErrorClass::NoLocalPort {
            self.dead[usize::from(base + self.trips[conn.index()].address % addresses)].add(errno);
        }
        if self.trips[conn.index()].tried < addresses && class != ErrorClass::NoLocalPort {
            self.io.close(conn);
            let c = &mut self.conns[conn.index()];
            c.generation = c.generation.wrapping_add(1);
            let trip = &mut self.trips[conn.index()];
            trip.address = (trip.address + 1) % addresses;
            return self.connect(conn, now);
        }
        self.tally.result.connections.failed += 1;
        if self.conns[conn.index()].has(flag::WAITED) {
            self.end_request(conn, Outcome::Failed(class), errno_text(errno), now);
        }
        self.begin_close(conn);
    }

    /// An idle connection is used until shortly before the server's time to keep it is over, as far as the server told one.
    #[inline]
    fn idle_until_kept(&mut self, conn: ConnId) {
        // The server's own clock began before `dispatched` at the latest.
        let until = match self.trips[conn.index()].keep_ns {
            u64::MAX => Nanos::NONE,
            keep => self.dispatched.plus(keep),
        };
        self.deadlines[conn.index()] = until;
        self.next_sweep = self.next_sweep.min(until);
    }

    /// Puts an open connection among the idle ones.
    #[inline]
    pub(super) fn list_idle(&mut self, conn: ConnId) {
        let c = &mut self.conns[conn.index()];
        c.state = State::Idle;
        self.idle_until_kept(conn);
        let c = &mut self.conns[conn.index()];
        if !c.has(flag::LISTED) {
            c.set(flag::LISTED);
            let target = c.target;
            let peer = self.peer(target);
            self.idle[peer].push(conn.0);
        }
    }

    /// After a response that was complete: the connection is kept, or closed.
    #[inline]
    pub(super) fn keep_or_close(&mut self, conn: ConnId) {
        let c = &mut self.conns[conn.index()];
        let goes_on = c.is(mark::GOES_ON);
        c.marks &= !mark::GOES_ON;
        if c.has(flag::LAST) || self.shared.plan.reuse == Reuse::Never {
            self.begin_close(conn);
        } else if self.shared.plan.reuse == Reuse::Session {
            if goes_on && self.phase == self.playing && self.hold(conn) {
                self.conns[conn.index()].set(flag::KEPT);
                self.trips[conn.index()].uses += 1;
            } else {
                self.begin_close(conn);
            }
        } else {
            c.set(flag::KEPT);
            self.trips[conn.index()].uses += 1;
            self.list_idle(conn);
        }
    }

    /// The idle connection that a session's next turn goes over (`--reuse session`).
    #[inline]
    pub(super) fn held(&self, instance: u32) -> Option<ConnId> {
        self.holds.get(instance as usize).copied().filter(|&slot| slot != NOTHING).map(ConnId)
    }

    /// Keeps an open connection for the session that it just carried. False when that has one already: turns of a graph run
    /// side by side.
    fn hold(&mut self, conn: ConnId) -> bool {
        let c = &mut self.conns[conn.index()];
        match self.holds.get_mut(c.instance as usize) {
            Some(held) if *held == NOTHING => {
                *held = conn.0;
                c.marks |= mark::HELD;
                c.state = State::Idle;
                self.idle_until_kept(conn);
                true
            }
            _ => false,
        }
    }

    /// A session's connection is its own no more.
    fn let_go(&mut self, conn: ConnId) {
        let c = &mut self.conns[conn.index()];
        if c.is(mark::HELD) {
            c.marks &= !mark::HELD;
            if let Some(held) = self.holds.get_mut(c.instance as usize) {
                *held = NOTHING;
            }
        }
    }

    /// Closes what sessions held that ended without a request of theirs having ended.
    #[inline]
    pub(super) fn close_dropped(&mut self) {
        while let Some(instance) = self.agenda.next_dropped() {
            if let Some(conn) = self.held(instance) {
                self.begin_close(conn);
            }
        }
    }

    /// Ends a connection. The slot is free once nothing of it is in the kernel.
    pub(super) fn begin_close(&mut self, conn: ConnId) {
        self.conns[conn.index()].clear(flag::WAITED);
        self.shut(conn);
    }

    /// Ends a connection whose slot a request has taken: it goes on, to a target, once nothing of it is in the kernel.
    pub(super) fn close_and_reopen(&mut self, conn: ConnId, target: u16) {
        let c = &mut self.conns[conn.index()];
        c.target = target;
        c.set(flag::WAITED);
        self.shut(conn);
    }

    /// Something came over a connection that nothing was asked of, or its time is over: it is of no more use. A request whose body
    /// is still on its way from the disk gets another.
    pub(super) fn unasked(&mut self, conn: ConnId) {
        let c = &self.conns[conn.index()];
        if c.state == State::Fetching { self.close_and_reopen(conn, c.target) } else { self.begin_close(conn) }
    }

    /// Reads what a request's body wants from the disk, without waiting for it: the connection stays as it is meanwhile, and
    /// nothing of the request has begun. The wait is between its due time and its start.
    #[cold]
    pub(super) fn fetch(&mut self, conn: ConnId, range: Range<u64>) {
        let c = &mut self.conns[conn.index()];
        c.state = State::Fetching;
        c.set(flag::WAITED);
        c.in_kernel += 1;
        if !c.is(mark::COLD) {
            c.marks |= mark::COLD;
            self.tally.result.cost.cold_slices += u64::from(!c.has(flag::WARMUP));
        }
        let trip = &mut self.trips[conn.index()];
        (trip.fetch_from, trip.fetch_bytes) = (range.start, (range.end - range.start) as u32);
        self.io.fetch(conn, self.conns[conn.index()].generation, &range);
    }

    /// A part of a body is in memory, or could not be brought there.
    #[cold]
    pub(super) fn fetched(&mut self, conn: ConnId, result: i32, now: Nanos) {
        let trip = &self.trips[conn.index()];
        if result == 0 {
            self.io.fetched(trip.fetch_from..trip.fetch_from + u64::from(trip.fetch_bytes));
        }
        let c = &mut self.conns[conn.index()];
        if c.state != State::Fetching {
            return;
        }
        if result == -libc::EFAULT {
            return self.fail_changed(conn, now);
        }
        if result < 0 {
            c.marks |= mark::BLIND;
        }
        // The server's time to keep it idle may have run out meanwhile.
        if self.deadlines[conn.index()] <= now { self.unasked(conn) } else { self.begin(conn, now) }
    }

    /// The request of a kept connection that turned out to be closed goes out again, on a new one. It is still the same request:
    /// it began when it was sent first.
    #[cold]
    pub(super) fn resend(&mut self, conn: ConnId) {
        self.tally.result.connections.resent += 1;
        let c = &mut self.conns[conn.index()];
        let target = c.target;
        (c.status, c.interim, c.carried, c.first_byte) = (0, 0, 0, Nanos::NONE);
        self.close_and_reopen(conn, target);
    }

    fn shut(&mut self, conn: ConnId) {
        let c = &mut self.conns[conn.index()];
        if matches!(c.state, State::Closed | State::Closing) {
            return;
        }
        if !matches!(c.state, State::Connecting | State::Handshaking) {
            self.counts.connections = self.counts.connections.saturating_sub(1);
        }
        self.let_go(conn);
        let c = &mut self.conns[conn.index()];
        let connecting = c.state == State::Connecting;
        let silent = c.has(flag::SEND);
        c.state = State::Closing;
        if !silent && let Some(farewell) = self.tls.farewell(conn) {
            self.io.say_last(conn, farewell);
        }
        let c = &mut self.conns[conn.index()];
        if c.in_kernel == 0 {
            self.deadlines[conn.index()] = Nanos::NONE;
            return self.closed(conn);
        }
        let until = self.dispatched.plus(limits::CLOSE_WAIT_NS);
        self.deadlines[conn.index()] = until;
        self.next_sweep = self.next_sweep.min(until);
        let (generation, sending) = (c.generation, c.has(flag::SEND));
        self.io.shutdown(conn);
        if connecting || sending {
            self.io.cancel(conn, generation, if connecting { Op::Connect } else { Op::Send });
            self.conns[conn.index()].in_kernel += 1;
        }
    }

    /// Nothing of a closing slot is in the kernel any more.
    pub(super) fn closed(&mut self, conn: ConnId) {
        self.io.close(conn);
        self.tls.close(conn);
        let c = &mut self.conns[conn.index()];
        debug_assert!(c.state == State::Closing && c.in_kernel == 0);
        c.state = State::Closed;
        self.deadlines[conn.index()] = Nanos::NONE;
        c.generation = c.generation.wrapping_add(1);
        if !c.has(flag::WAITED) {
            c.flags &= flag::LISTED | flag::STARVED;
            return self.closed.push(conn.0);
        }
        c.flags &= flag::LISTED | flag::STARVED | flag::WAITED | flag::WARMUP;
        let target = c.target;
        let trip = &mut self.trips[conn.index()];
        (trip.sent, trip.sent_bytes, trip.unnotified_bytes) = (Nanos::NONE, 0, 0);
        (trip.connect_ns, trip.tls_ns) = (u64::MAX, u64::MAX);
        let now = self.shared.clock.now();
        self.open(conn, target, now);
    }

    /// When a slot must have moved on, whose request was begun or whose bytes came at `now`.
    #[inline]
    pub(super) fn deadline(&self, conn: ConnId, now: Nanos) -> Nanos {
        let t = &self.shared.plan.timeouts;
        let c = &self.conns[conn.index()];
        let whole = c.start.plus(t.request_ns);
        // The first byte of the final response counts: an interim one is no answer.
        let moved = if !c.first_byte.is_some() {
            whole.min(c.start.plus(t.first_byte_ns))
        } else {
            whole.min(now.plus(t.idle_ns))
        };
        if c.is(mark::CANCEL) { moved.min(self.cancel_at(conn)) } else { moved }
    }

    /// When a request that is to be broken off is: a time after its last byte was taken; none before that.
    fn cancel_at(&self, conn: ConnId) -> Nanos {
        let after_ns = self.shared.legs[self.phase].plan.cancel.map_or(u64::MAX, |c| c.after_ns);
        self.trips[conn.index()].sent.get().map_or(Nanos::NONE, |sent| Nanos(sent).plus(after_ns))
    }

    /// The last byte was taken of a request that is to be broken off.
    #[cold]
    pub(super) fn wait_to_cancel(&mut self, conn: ConnId, now: Nanos) {
        self.deadlines[conn.index()] = self.deadline(conn, now);
        self.next_sweep = self.next_sweep.min(self.deadlines[conn.index()]);
    }

    /// Ends what has outlived its deadline, and finds the next time to look.
    pub(super) fn sweep(&mut self, now: Nanos) {
        let mut next = Nanos::NONE;
        for slot in 0..self.deadlines.len() {
            let deadline = self.deadlines[slot];
            if deadline <= now {
                self.timed_out(ConnId(slot as u32), now);
            }
            next = next.min(self.deadlines[slot]);
        }
        self.next_sweep = next;
    }

    #[cold]
    fn timed_out(&mut self, conn: ConnId, now: Nanos) {
        self.deadlines[conn.index()] = Nanos::NONE;
        let played = self.enter(conn);
        self.end_late(conn, now);
        self.switch(played);
    }

    fn end_late(&mut self, conn: ConnId, now: Nanos) {
        let t = &self.shared.plan.timeouts;
        let c = &self.conns[conn.index()];
        match c.state {
            State::Connecting | State::Handshaking => {
                let why =
                    if c.state == State::Connecting { "no connection in time" } else { "no TLS handshake in time" };
                self.tally.result.connections.failed += 1;
                if c.has(flag::WAITED) {
                    let late = c.start.is_some() && c.start.plus(t.request_ns) <= now;
                    let class = if late { ErrorClass::RequestTimeout } else { ErrorClass::ConnectTimeout };
                    self.end_request(conn, Outcome::Failed(class), why, now);
                }
                self.begin_close(conn);
            }
            State::Busy if c.has(flag::ANSWERED) => self.answered(conn, true, now),
            State::Busy if c.is(mark::CANCEL) && self.cancel_at(conn) <= now => {
                self.conns[conn.index()].marks |= mark::CANCELLED;
                self.end_request(conn, Outcome::Cut, "", now);
                self.begin_close(conn);
            }
            State::Busy => {
                let class = if c.start.plus(t.request_ns) <= now {
                    ErrorClass::RequestTimeout
                } else if c.first_byte.is_some() {
                    ErrorClass::IdleTimeout
                } else {
                    ErrorClass::FirstByteTimeout
                };
                self.fail(conn, class, "", now);
            }
            // A peer that acknowledges nothing keeps a zero-copy send's memory in the kernel, and with it the slot.
            State::Closing => self.io.abort(conn),
            // The server said how long it keeps an idle connection, and that time is all but over.
            State::Idle | State::Fetching => self.unasked(conn),
            State::Closed => {}
        }
    }

    /// Ends a request that still waits for its connection: missed, as nothing of it was handed to the kernel; cut, when it was
    /// to be sent again.
    fn give_up_waiting(&mut self, conn: ConnId, now: Nanos) {
        let c = &mut self.conns[conn.index()];
        if c.start.is_some() {
            return self.end_request(conn, Outcome::Cut, "", now);
        }
        let (record, instance, warmup) = (c.record, c.instance, c.has(flag::WARMUP));
        self.warm_in_flight -= u64::from(warmup);
        c.clear(flag::WAITED | flag::OF_REQUEST);
        self.prefilling -= u32::from(c.is(mark::PREFILL));
        c.marks &= !mark::OF_REQUEST;
        self.counts.in_flight -= 1;
        self.counts.issued -= 1;
        self.counts.missed += 1;
        if !warmup {
            self.tally.result.buckets.scheduled += 1;
            self.tally.result.buckets.missed += 1;
        }
        self.agenda.ended(record, instance, false, now.since(self.start));
    }

    /// Cuts every request in flight.
    pub(super) fn cut_all(&mut self, now: Nanos) {
        for slot in 0..self.conns.len() as u32 {
            self.cut(ConnId(slot), now);
        }
    }

    /// Cuts what is still in flight of phases before the one that is played.
    pub(super) fn cut_old(&mut self, now: Nanos) {
        for slot in 0..self.conns.len() as u32 {
            if self.conns[slot as usize].is(mark::OLD) {
                self.cut(ConnId(slot), now);
            }
        }
    }

    fn cut(&mut self, conn: ConnId, now: Nanos) {
        let played = self.enter(conn);
        let c = &self.conns[conn.index()];
        match c.state {
            State::Busy if c.has(flag::ANSWERED) => self.answered(conn, true, now),
            State::Busy => {
                self.end_request(conn, Outcome::Cut, "", now);
                self.begin_close(conn);
            }
            State::Connecting | State::Handshaking | State::Fetching if c.has(flag::WAITED) => {
                self.give_up_waiting(conn, now);
                self.begin_close(conn);
            }
            State::Closing if c.has(flag::WAITED) => self.give_up_waiting(conn, now),
            _ => {}
        }
        self.switch(played);
    }

    /// Arms again the receives that ended for want of buffers, now that some came back.
    #[inline]
    pub(super) fn feed_starved(&mut self) {
        while let Some(slot) = self.starved.pop() {
            let conn = ConnId(slot);
            let c = &mut self.conns[conn.index()];
            c.clear(flag::STARVED);
            if c.receives() && !c.has(flag::RECV) {
                let generation = c.generation;
                self.io.recv(conn, generation);
                self.asked(conn, flag::RECV);
            }
        }
    }
}

/// The kernel's reason in words, without allocating.
pub(super) fn errno_text(errno: i32) -> &'static str {
    nix::errno::Errno::from_raw(errno).desc()
}
