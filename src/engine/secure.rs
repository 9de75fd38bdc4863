//! What TLS adds to a worker: request bytes go through a session on their way to the ring, and received bytes on their way to
//! the response. What a session is, `tls` knows; this file moves its bytes.
//!
//! Figures: bytes sent and received are those on the wire, body bytes are counted before encryption once the last record of
//! their piece was taken. Handshakes belong to connections and not to requests, and are in none of them.

use super::{
    conn::{State, flag, mark},
    dispatch::Source,
    io::Io,
    tls::{Opened, Stopped},
    worker::Worker,
};
use crate::{
    data::{ConnId, Nanos, limits, outcome::ErrorClass},
    sys::ring::BufferId,
};

impl<I: Io> Worker<'_, I> {
    /// Sends the first piece of a request, whose head was written for the session. The connection is open and free.
    pub(super) fn begin_tls(&mut self, conn: ConnId, head: usize, now: Nanos) {
        self.tls.begin(conn);
        match self.feed(conn, head) {
            Ok(()) => self.send_tls(conn, now),
            Err(stopped) => self.stopped(conn, stopped, now),
        }
    }

    /// Hands the ring what a session has to send, at most one send of a connection at a time: what a short send left over, what
    /// rustls has to say, the next piece of the request. Nothing of it may be in the kernel.
    pub(super) fn send_tls(&mut self, conn: ConnId, now: Nanos) {
        debug_assert!(!self.conns[conn.index()].has(flag::SEND));
        let busy = self.conns[conn.index()].state == State::Busy;
        if busy
            && self.tls.is_flushed(conn)
            && self.tls.fed(conn) < self.trips[conn.index()].total_bytes
            && let Err(stopped) = self.feed(conn, 0)
        {
            return self.stopped(conn, stopped, now);
        }
        let area = &mut self.io.head_mut(conn)[..limits::TLS_AREA_BYTES];
        if let Some((from, to)) = self.tls.write(conn, area) {
            self.io.send_area(conn, self.conns[conn.index()].generation, from, to);
            self.asked(conn, flag::SEND);
        }
    }

    /// Encrypts the next piece: `head` bytes that are in place already, and the body from where the last piece ended.
    fn feed(&mut self, conn: ConnId, head: usize) -> Result<(), Stopped> {
        let view = &self.shared.view;
        let skip = self.tls.fed(conn).saturating_sub(u64::from(self.trips[conn.index()].head_bytes));
        self.tls.feed(conn, head, view.map(), view.spans(self.conns[conn.index()].record), skip)
    }

    #[cold]
    fn stopped(&mut self, conn: ConnId, why: Stopped, now: Nanos) {
        match why {
            Stopped::Changed => self.fail_changed(conn, now),
            Stopped::Broken => self.fail(conn, ErrorClass::Tls, "", now),
        }
    }

    /// The kernel took `n` bytes of a session.
    pub(super) fn count_sent_tls(&mut self, conn: ConnId, n: u64, now: Nanos) {
        let out = self.tls.sent(conn, n);
        if self.tls.fed(conn) == 0 {
            return;
        }
        let trip = &mut self.trips[conn.index()];
        let body = |sent: u64| sent.saturating_sub(u64::from(trip.head_bytes));
        let before = body(trip.sent_bytes);
        let after = out.map_or(before, body);
        if let Some(out) = out {
            trip.sent_bytes = out;
            if out >= trip.total_bytes && !trip.sent.is_some() {
                trip.sent = now;
                if self.conns[conn.index()].is(mark::CANCEL) {
                    self.wait_to_cancel(conn, now);
                }
            }
        }
        self.counts.sent_bytes += n;
        if !self.conns[conn.index()].has(flag::WARMUP) {
            let bytes = &mut self.tally.result.bytes;
            bytes.sent += n;
            bytes.sent_copied += n;
            bytes.bodies += after - before;
        }
    }

    /// Bytes came for a session: its handshake goes on, or what they hold goes to the response.
    pub(super) fn wire_came(&mut self, conn: ConnId, buffer: BufferId, n: usize, now: Nanos) {
        let c = &self.conns[conn.index()];
        if c.state == State::Busy && !c.has(flag::ANSWERED) {
            self.count_received(conn, n, now);
        }
        let mut at = 0;
        while self.conns[conn.index()].receives() {
            let (taken, opened) = self.tls.open_bytes(conn, &self.io.received(buffer, n)[at..]);
            at += taken;
            match opened {
                Opened::All => return self.go_on(conn, now),
                Opened::Plaintext(bytes) if self.is_awaited(conn) => {
                    self.response_came(conn, Source::Opened, bytes, now);
                }
                Opened::Plaintext(_) => {}
                Opened::End => return self.session_ended(conn, now),
                Opened::Broken => return self.session_broken(conn, now),
            }
        }
    }

    /// All that came was read: what it asked for in return is sent, once nothing else of the connection is in the kernel.
    fn go_on(&mut self, conn: ConnId, now: Nanos) {
        let c = &self.conns[conn.index()];
        match c.state {
            State::Handshaking => self.shake(conn, now),
            State::Busy if self.tls.wants_write(conn) && !c.has(flag::SEND | flag::SEND_FAILED) => {
                self.send_tls(conn, now);
            }
            // An idle connection says it before its next request.
            _ => {}
        }
    }

    /// The peer said close_notify: nothing comes any more, and what came is whole.
    #[cold]
    fn session_ended(&mut self, conn: ConnId, now: Nanos) {
        match self.conns[conn.index()].state {
            State::Handshaking => self.handshake_failed(conn, "closed during the handshake", now),
            State::Busy => self.peer_closed(conn, now),
            _ => self.unasked(conn),
        }
    }

    #[cold]
    fn session_broken(&mut self, conn: ConnId, now: Nanos) {
        let c = &self.conns[conn.index()];
        match c.state {
            State::Handshaking => self.handshake_failed(conn, "", now),
            State::Busy if c.has(flag::ANSWERED) => self.answered(conn, true, now),
            State::Busy => self.fail(conn, ErrorClass::Tls, "", now),
            _ => self.unasked(conn),
        }
    }
}
