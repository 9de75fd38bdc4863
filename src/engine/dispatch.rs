//! What completions do: all branching on operation and state is here.
//!
//! This file is long because that branching is easier to check in one place than in two.

use super::{
    conn::{State, flag, mark},
    io::Io,
    live::Ends,
    slots::errno_text,
    tally::Evidence,
    tls::Sessions,
    too_many_errors,
    worker::Worker,
};
use crate::{
    data::{
        ConnId, Nanos, limits,
        outcome::{ErrorClass, Outcome},
        plan::StreamMode,
        rows::{NONE_U32, Row},
    },
    sys::ring::{BufferId, Completion, Copying, Op, ZC_COPIED},
    wire::{
        response::{self, Body, Content, Head, HeadStep},
        scan::Scan,
    },
};

/// What one read did to a request.
enum Read {
    /// More is to come.
    More,
    /// The response is complete; bytes of nothing came after it.
    Complete { surplus: bool },
    /// It cannot be a response.
    Wrong(ErrorClass, &'static str),
}

/// Where the bytes of a response lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// In a receive buffer, as they came.
    Wire(BufferId),
    /// Opened by TLS, in the worker's own buffer.
    Opened,
}

impl Source {
    #[inline]
    fn bytes<'a, I: Io>(self, io: &'a I, tls: &'a Sessions, n: usize) -> &'a [u8] {
        match self {
            Self::Wire(buffer) => io.received(buffer, n),
            Self::Opened => tls.plaintext(n),
        }
    }
}

impl<I: Io> Worker<'_, I> {
    /// One completion. A stale one (of a slot's earlier use) is counted and dropped.
    #[inline]
    pub(super) fn dispatch(&mut self, completion: &Completion, now: Nanos) {
        let conn = completion.conn;
        let known = self.conns.get(conn.index()).is_some_and(|c| c.generation == completion.generation);
        if !known {
            self.tally.result.cost.stale_completions += 1;
            if let Some(buffer) = completion.buffer {
                self.io.give_back(buffer);
            }
            return;
        }
        if !completion.more {
            self.conns[conn.index()].in_kernel -= 1;
        }
        let played = self.enter(conn);
        match completion.op {
            Op::Recv => self.received(conn, completion, now),
            Op::Send => self.sent(conn, completion, now),
            Op::Connect if self.conns[conn.index()].state == State::Connecting => {
                self.connected(conn, completion.result, now);
            }
            Op::Fetch => self.fetched(conn, completion.result, now),
            // Writes of spools never come here: the ring deals with them.
            Op::Connect | Op::Cancel | Op::Write => {}
        }
        let c = &self.conns[conn.index()];
        if c.state == State::Closing && c.in_kernel == 0 {
            self.closed(conn);
        }
        self.switch(played);
    }

    fn sent(&mut self, conn: ConnId, completion: &Completion, now: Nanos) {
        if completion.notification {
            self.notified(conn, completion.result & ZC_COPIED != 0);
        } else if completion.result > 0 {
            if self.tls.on(conn) {
                self.count_sent_tls(conn, completion.result as u64, now);
            } else {
                self.count_sent(conn, completion.result as u64, completion.more, now);
            }
        }
        let c = &mut self.conns[conn.index()];
        if !completion.notification && completion.result < 0 {
            match -completion.result {
                libc::ENOMEM | libc::ENOBUFS => c.set(flag::COPY_ONLY),
                _ => c.set(flag::SEND_FAILED | flag::LAST),
            }
        }
        if !completion.more {
            c.clear(flag::SEND);
        }
        if c.state == State::Handshaking {
            return if c.has(flag::SEND_FAILED) {
                self.handshake_failed(conn, errno_text(-completion.result), now)
            } else {
                self.shake(conn, now)
            };
        }
        if c.state != State::Busy {
            return;
        }
        if completion.result == -libc::EFAULT && !completion.notification {
            return self.fail_changed(conn, now);
        }
        if completion.more {
            return;
        }
        let trip = &self.trips[conn.index()];
        let whole = trip.sent_bytes == trip.total_bytes;
        if c.has(flag::ANSWERED) {
            if whole || c.has(flag::SEND_FAILED) {
                self.answered(conn, !whole, now);
            } else {
                self.resume(conn, now);
            }
        } else if c.has(flag::SEND_FAILED) {
            // The response may still come (an early 413 before a reset): the receive decides, unless it has ended already.
            if !c.has(flag::RECV) && !c.has(flag::STARVED) {
                self.lost(conn, ErrorClass::Reset, "the connection was reset while sending", now);
            }
        } else if !whole {
            self.resume(conn, now);
        } else if !c.has(flag::RECV) && !c.has(flag::STARVED) {
            // The receive had ended before, and this send was to say whether by a reset.
            self.lost(conn, ErrorClass::NoResponse, "closed without a response", now);
        }
    }

    /// A zero-copy send's memory is free again. Its bytes were counted as copied when its result came.
    fn notified(&mut self, conn: ConnId, copied: bool) {
        let n = std::mem::take(&mut self.trips[conn.index()].unnotified_bytes);
        if !copied && n > 0 {
            self.conns[conn.index()].set(flag::ZERO_COPY);
            // Where they were counted, also when the request has ended and the next phase has begun.
            let back = self.phase;
            self.switch(self.trips[conn.index()].phase as usize);
            let bytes = &mut self.tally.result.bytes;
            bytes.sent_copied -= n.min(bytes.sent_copied);
            bytes.sent_zero_copy += n;
            self.switch(back);
        }
    }

    /// The kernel took `n` bytes; `unnotified` when they went without copying and their memory is still in use.
    #[inline]
    fn count_sent(&mut self, conn: ConnId, n: u64, unnotified: bool, now: Nanos) {
        let warmup = self.conns[conn.index()].has(flag::WARMUP);
        let trip = &mut self.trips[conn.index()];
        let head_left = u64::from(trip.head_bytes).saturating_sub(trip.sent_bytes);
        trip.sent_bytes += n;
        if trip.sent_bytes >= trip.total_bytes {
            trip.sent = now;
        }
        let whole = trip.sent_bytes >= trip.total_bytes;
        if whole && self.conns[conn.index()].is(mark::CANCEL) {
            self.wait_to_cancel(conn, now);
        }
        let trip = &mut self.trips[conn.index()];
        self.counts.sent_bytes += n;
        if !warmup {
            let bytes = &mut self.tally.result.bytes;
            bytes.sent += n;
            let by_file = if trip.by_file { n - head_left.min(n) } else { 0 };
            bytes.sent_file += by_file;
            bytes.sent_copied += n - by_file;
            bytes.bodies += n - head_left.min(n);
            trip.unnotified_bytes = if unnotified { n } else { 0 };
        }
    }

    /// Sends what a short send left over.
    #[cold]
    fn resume(&mut self, conn: ConnId, now: Nanos) {
        if self.tls.on(conn) {
            return self.send_tls(conn, now);
        }
        let c = &self.conns[conn.index()];
        let trip = &self.trips[conn.index()];
        let head = u64::from(trip.head_bytes);
        let body = trip.total_bytes - head;
        let copying =
            if body >= self.rule.zero_copy_min && !c.has(flag::COPY_ONLY) { Copying::Zero } else { Copying::Copy };
        let from = trip.sent_bytes.min(head) as usize;
        let skip = trip.sent_bytes.saturating_sub(head);
        let spans = self.shared.view.spans(c.record);
        let by_file = trip.by_file;
        let sent = if body == 0 {
            self.io.send_area(conn, c.generation, from, head as usize);
            Ok(())
        } else if by_file {
            self.io.send_file(conn, c.generation, (from, head as usize), spans, skip)
        } else {
            self.io.send_vector(conn, c.generation, (from, head as usize), spans, skip, copying).map(drop)
        };
        match sent {
            Ok(()) => self.asked(conn, flag::SEND),
            Err(_) => self.fail_changed(conn, now),
        }
    }

    #[inline]
    fn received(&mut self, conn: ConnId, completion: &Completion, now: Nanos) {
        if !completion.more {
            self.conns[conn.index()].clear(flag::RECV);
        }
        let n = completion.result;
        if let Some(buffer) = completion.buffer {
            if n > 0 {
                self.bytes_came(conn, buffer, n as usize, now);
            }
            self.io.give_back(buffer);
        }
        if n <= 0 {
            self.receive_ended(conn, n, now);
        } else if !completion.more && self.conns[conn.index()].receives() {
            let generation = self.conns[conn.index()].generation;
            self.io.recv(conn, generation);
            self.asked(conn, flag::RECV);
        }
    }

    #[inline]
    fn bytes_came(&mut self, conn: ConnId, buffer: BufferId, n: usize, now: Nanos) {
        if self.tls.on(conn) {
            return self.wire_came(conn, buffer, n, now);
        }
        if self.is_awaited(conn) {
            self.count_received(conn, n, now);
            self.response_came(conn, Source::Wire(buffer), n, now);
        }
    }

    /// True when bytes of a response that just came belong to a request.
    #[inline]
    pub(super) fn is_awaited(&mut self, conn: ConnId) -> bool {
        let c = &self.conns[conn.index()];
        match c.state {
            State::Busy if !c.has(flag::ANSWERED) => return true,
            // Bytes that no request asked for: whatever they are, they must not be taken for the next response.
            State::Idle | State::Fetching => self.unasked(conn),
            State::Busy => self.conns[conn.index()].set(flag::LAST),
            State::Closed | State::Connecting | State::Handshaking | State::Closing => {}
        }
        false
    }

    /// Counts bytes that came off the wire for a request.
    #[inline]
    pub(super) fn count_received(&mut self, conn: ConnId, n: usize, now: Nanos) {
        let c = &self.conns[conn.index()];
        self.counts.received_bytes += n as u64;
        if !c.has(flag::WARMUP) {
            self.tally.result.bytes.received += n as u64;
            if let Some(slice) = self.tally.slice(now) {
                slice.received_bytes += n as u64;
            }
        }
        self.trips[conn.index()].received_bytes += n as u64;
    }

    /// The next bytes of a request's response.
    #[inline]
    pub(super) fn response_came(&mut self, conn: ConnId, source: Source, n: usize, now: Nanos) {
        self.trips[conn.index()].last_byte = now;
        if self.tally.wants_bytes() {
            self.keep_bytes(conn, source, n);
        }
        match self.read(conn, source, n, now) {
            // Only now is it known whether these bytes were of the final response.
            Read::More => {
                let timeouts = &self.shared.plan.timeouts;
                if timeouts.idle_ns != u64::MAX || timeouts.first_byte_ns != u64::MAX {
                    self.deadlines[conn.index()] = self.deadline(conn, now);
                    self.next_sweep = self.next_sweep.min(self.deadlines[conn.index()]);
                }
            }
            Read::Complete { surplus } => {
                if surplus {
                    self.conns[conn.index()].set(flag::LAST);
                }
                self.response_complete(conn, now);
            }
            Read::Wrong(class, why) => self.fail(conn, class, why, now),
        }
    }

    /// Keeps the first and the last bytes of a response, for the sample of a failure.
    #[inline]
    fn keep_bytes(&mut self, conn: ConnId, source: Source, n: usize) {
        let bytes = source.bytes(&self.io, &self.tls, n);
        let trip = &mut self.trips[conn.index()];
        let (first, last) = self.kept.slot_mut(conn.index()).split_at_mut(limits::SAMPLE_BYTES);
        let had = trip.kept_first as usize;
        let front = bytes.len().min(first.len() - had);
        first[had..had + front].copy_from_slice(&bytes[..front]);
        trip.kept_first += front as u16;
        let rest = &bytes[front..];
        if rest.len() >= last.len() {
            last.copy_from_slice(&rest[rest.len() - last.len()..]);
            trip.kept_last = last.len() as u16;
        } else if !rest.is_empty() {
            let had = trip.kept_last as usize;
            let keep = had.min(last.len() - rest.len());
            last.copy_within(had - keep..had, 0);
            last[keep..keep + rest.len()].copy_from_slice(rest);
            trip.kept_last = (keep + rest.len()) as u16;
        }
    }

    /// Reads a buffer as the next part of a slot's response.
    #[inline]
    fn read(&mut self, conn: ConnId, source: Source, n: usize, now: Nanos) -> Read {
        let mut at = 0;
        while !self.conns[conn.index()].has(flag::HEAD) {
            match self.read_head(conn, source, n, at, now) {
                Ok(Some(next)) => at = next,
                Ok(None) => return Read::More,
                Err(wrong) => return wrong,
            }
            if at == n && !self.conns[conn.index()].has(flag::HEAD) {
                return Read::More;
            }
        }
        let c = &mut self.conns[conn.index()];
        let bytes = &source.bytes(&self.io, &self.tls, n)[at..];
        let (mut content, mut output) = (0, 0);
        let keeps = self.trips[conn.index()].keeps;
        let piece = &mut self.piece;
        let fed = if c.has(flag::SCAN) {
            let scan = &mut self.streams[conn.index()].scan;
            c.body.feed(bytes, |payload| {
                let seen = scan.feed(payload);
                content += seen.content_events;
                output += seen.output_events;
                if keeps {
                    piece.extend_from_slice(payload);
                }
            })
        } else if keeps {
            c.body.feed(bytes, |payload| piece.extend_from_slice(payload))
        } else {
            c.body.feed(bytes, |_| {})
        };
        if keeps {
            self.keep_piece(conn);
        }
        if content > 0 {
            self.tokens_came(conn, content, output, now);
        }
        match fed {
            Ok(fed) if fed.done => Read::Complete { surplus: fed.consumed < n - at },
            Ok(_) => Read::More,
            Err(wrong) => Read::Wrong(wrong.class, wrong.reason),
        }
    }

    /// Hands the payload of one read to the spool of responses.
    fn keep_piece(&mut self, conn: ConnId) {
        let trip = &mut self.trips[conn.index()];
        if let Some(kept) = &self.rows {
            kept.piece(&mut self.io, conn.0, &self.piece, trip.kept_bytes);
        }
        trip.kept_bytes += self.piece.len() as u64;
        self.piece.clear();
    }

    /// Reads a head, or a part of one, from `at` on. Returns where the next one, or the body, begins; none when the buffer is
    /// used up before.
    #[inline]
    fn read_head(
        &mut self,
        conn: ConnId,
        source: Source,
        n: usize,
        at: usize,
        now: Nanos,
    ) -> Result<Option<usize>, Read> {
        let c = &mut self.conns[conn.index()];
        let bytes = &source.bytes(&self.io, &self.tls, n)[at..];
        let head_only = self.shared.heads.of(c.target, self.shared.view.template(c.record)).method_is_head();
        let carried = c.carried as usize;
        if !c.first_byte.is_some() {
            c.first_byte = now;
        }
        let parsed = if carried == 0 {
            response::parse_head(bytes, head_only)
        } else {
            let area = self.carry.slot_mut(conn.index());
            let take = bytes.len().min(area.len() - carried);
            area[carried..carried + take].copy_from_slice(&bytes[..take]);
            response::parse_head(&area[..carried + take], head_only)
        };
        match parsed {
            Ok(HeadStep::Partial) => {
                let area = self.carry.slot_mut(conn.index());
                if carried + bytes.len() > area.len() {
                    return Err(Read::Wrong(ErrorClass::HeadersTooLarge, "the head has more than 64 KiB"));
                }
                if carried == 0 {
                    area[..bytes.len()].copy_from_slice(bytes);
                }
                c.carried += bytes.len() as u32;
                Ok(None)
            }
            Ok(HeadStep::Interim { consumed }) => {
                c.interim += 1;
                if u32::from(c.interim) > limits::INTERIM_RESPONSES_MAX {
                    return Err(Read::Wrong(ErrorClass::Framing, "more than 64 interim responses"));
                }
                c.carried = 0;
                c.first_byte = Nanos::NONE;
                Ok(Some(at + consumed.saturating_sub(carried)))
            }
            Ok(HeadStep::Final(head)) => {
                c.carried = 0;
                let next = at + head.consumed.saturating_sub(carried);
                self.begin_response(conn, &head);
                Ok(Some(next))
            }
            Err(wrong) => Err(Read::Wrong(wrong.class, wrong.reason)),
        }
    }

    /// The head of the final response is whole.
    #[inline]
    fn begin_response(&mut self, conn: ConnId, head: &Head) {
        let plan = &self.shared.plan;
        let c = &mut self.conns[conn.index()];
        c.set(flag::HEAD);
        c.status = head.status;
        c.body = Body::new(head.framing);
        if !head.keep_alive || head.keep_alive_timeout_s == Some(0) {
            c.set(flag::LAST);
        }
        if let Some(kept) = &mut self.rows
            && !c.has(flag::WARMUP)
        {
            self.trips[conn.index()].keeps = kept.takes_response();
        }
        if let Some(seconds) = head.keep_alive_timeout_s {
            let told = u64::from(seconds) * 1_000_000_000;
            self.trips[conn.index()].keep_ns = told - (told / 4).min(limits::KEEP_ALIVE_MARGIN_NS);
        }
        let stream = match plan.stream {
            StreamMode::Auto => head.content == Content::EventStream,
            StreamMode::Sse => true,
            StreamMode::Off => false,
        };
        if head.encoded {
            if stream {
                c.set(flag::ENCODED);
            }
            return;
        }
        let wants_usage = self.shared.view.flags(c.record).llm();
        if stream && (200..300).contains(&head.status) {
            c.set(flag::STREAM | flag::SCAN);
            self.streams[conn.index()].begin(Scan::stream());
        } else if head.content == Content::Json && wants_usage && plan.stream != StreamMode::Off {
            c.set(flag::SCAN);
            self.streams[conn.index()].begin(Scan::json());
        }
    }

    /// Content events became whole in this read; `output` of them are no reasoning.
    #[inline]
    fn tokens_came(&mut self, conn: ConnId, content: u32, output: u32, now: Nanos) {
        let c = &self.conns[conn.index()];
        if !c.has(flag::STREAM) {
            return;
        }
        self.left_prefill(conn);
        let s = &mut self.streams[conn.index()];
        let first = !s.first_token.is_some();
        if first {
            s.first_token = now;
        }
        if content > u32::from(first) && !s.second_token.is_some() {
            s.second_token = now;
        }
        s.last_token = now;
        // Events that came in one read came at one time: the first has a gap, the others none. Whether the gaps count is known
        // when the stream has ended: those of a failure do not.
        for _ in 0..content {
            self.stamps.push(&mut s.times, now);
        }
        if output > 0 && !s.first_output.is_some() {
            s.first_output = now;
        }
        s.content_events += content;
    }

    /// The receive has ended: end of stream, no buffers, reset, or cancelled.
    #[cold]
    fn receive_ended(&mut self, conn: ConnId, result: i32, now: Nanos) {
        if result == -libc::ENOBUFS {
            self.tally.result.cost.buffers_out += 1;
            let c = &mut self.conns[conn.index()];
            if !c.has(flag::STARVED) && !c.has(flag::RECV) {
                c.set(flag::STARVED);
                self.starved.push(conn.0);
            }
            return;
        }
        match self.conns[conn.index()].state {
            State::Idle | State::Fetching => self.unasked(conn),
            State::Busy if result == 0 => self.peer_closed(conn, now),
            State::Busy => self.lost(conn, ErrorClass::Reset, errno_text(-result), now),
            State::Handshaking if result == 0 => self.handshake_failed(conn, "closed during the handshake", now),
            State::Handshaking => self.handshake_failed(conn, errno_text(-result), now),
            State::Closed | State::Connecting | State::Closing => {}
        }
    }

    /// The server closed its side while a request was on the connection.
    pub(super) fn peer_closed(&mut self, conn: ConnId, now: Nanos) {
        let c = &mut self.conns[conn.index()];
        c.set(flag::LAST);
        if c.has(flag::ANSWERED) {
            self.answered(conn, true, now);
        } else if c.has(flag::HEAD) {
            match c.body.at_close() {
                // The close is the framing, and anybody on the way can close a TCP connection.
                Ok(()) if self.tls.on(conn) && !self.tls.ended(conn) => {
                    self.fail(conn, ErrorClass::Truncated, "closed without close_notify", now);
                }
                // The send took the socket's error, so that the receive sees a plain end.
                Ok(()) if c.has(flag::SEND_FAILED) => {
                    self.fail(conn, ErrorClass::Reset, "the connection was reset while sending", now);
                }
                Ok(()) => self.response_complete(conn, now),
                Err(wrong) => self.fail(conn, wrong.class, wrong.reason, now),
            }
        } else if c.carried > 0 || c.interim > 0 {
            self.fail(conn, ErrorClass::Truncated, "closed inside the response head", now);
        } else if c.has(flag::SEND_FAILED) {
            // The send took the socket's error, so the receive sees a plain end.
            self.lost(conn, ErrorClass::Reset, "the connection was reset while sending", now);
        } else if c.has(flag::SEND) && self.trips[conn.index()].sent_bytes < self.trips[conn.index()].total_bytes {
            // A reset may show as a plain end here, and as an error in the send alone: that decides.
        } else {
            self.lost(conn, ErrorClass::NoResponse, "closed without a response", now);
        }
    }

    /// The connection is gone, and no response was complete.
    fn lost(&mut self, conn: ConnId, class: ErrorClass, why: &'static str, now: Nanos) {
        let c = &self.conns[conn.index()];
        if c.has(flag::ANSWERED) {
            return self.answered(conn, true, now);
        }
        let untouched = !c.has(flag::HEAD) && c.carried == 0 && c.interim == 0;
        let stale = untouched && c.has(flag::KEPT);
        if stale && self.shared.plan.net.resend_stale {
            return self.resend(conn);
        }
        let class = if stale { ErrorClass::StaleConnection } else { class };
        self.fail(conn, class, why, now);
    }

    /// The response is complete by its framing. The slot is free when the request is, too.
    #[inline]
    fn response_complete(&mut self, conn: ConnId, now: Nanos) {
        let c = &mut self.conns[conn.index()];
        let trip = &mut self.trips[conn.index()];
        c.set(flag::ANSWERED);
        trip.last_byte = now;
        let whole = trip.sent_bytes == trip.total_bytes;
        if !c.has(flag::SEND) && (whole || c.has(flag::SEND_FAILED)) {
            self.answered(conn, !whole, now);
        } else if c.has(flag::LAST) || c.status >= 400 {
            // The server has its answer out and will not read on: the rest of the body is not worth sending.
            self.answered(conn, !whole, now);
        }
        // Else a server that answers early and reads on: the send's completion ends the request.
    }

    /// Counts a request whose response is complete, and frees its slot. `close` when the connection is of no more use.
    pub(super) fn answered(&mut self, conn: ConnId, close: bool, _now: Nanos) {
        let done = self.trips[conn.index()].last_byte;
        let outcome = self.judge(conn);
        let c = &mut self.conns[conn.index()];
        if close || c.has(flag::SEND) {
            c.set(flag::LAST);
        }
        self.end_request(conn, outcome, "", done);
        self.keep_or_close(conn);
    }

    /// How a complete response ended.
    #[inline]
    fn judge(&mut self, conn: ConnId) -> Outcome {
        let c = &self.conns[conn.index()];
        if let Some(class) = ErrorClass::of_status(c.status) {
            return Outcome::Failed(class);
        }
        if c.has(flag::ENCODED) {
            self.tally.result.cost.encoded_streams += 1;
        }
        let (scanned, streamed) = (c.has(flag::SCAN), c.has(flag::STREAM));
        if scanned {
            // An event without its blank line is whole now.
            let seen = self.streams[conn.index()].scan.finish();
            if seen.content_events > 0 {
                let done = self.trips[conn.index()].last_byte;
                self.tokens_came(conn, seen.content_events, seen.output_events, done);
            }
        }
        if !streamed {
            return Outcome::Succeeded;
        }
        let llm = self.shared.view.flags(self.conns[conn.index()].record).llm();
        let stream = &self.streams[conn.index()];
        let scan = &stream.scan;
        if scan.error() {
            Outcome::Failed(ErrorClass::StreamError)
        } else if scan.events() == 0 {
            Outcome::Failed(ErrorClass::StreamEmpty)
        } else if (stream.content_events > 0 || llm) && !scan.finished() && !self.shared.plan.stream_end_any {
            Outcome::Failed(ErrorClass::StreamIncomplete)
        } else {
            Outcome::Succeeded
        }
    }

    /// A failure that ends the connection too.
    #[cold]
    pub(super) fn fail(&mut self, conn: ConnId, class: ErrorClass, why: &'static str, now: Nanos) {
        self.end_request(conn, Outcome::Failed(class), why, now);
        self.begin_close(conn);
    }

    /// The cache entry changed under the run.
    #[cold]
    pub(super) fn fail_changed(&mut self, conn: ConnId, now: Nanos) {
        self.fail(conn, ErrorClass::CacheChanged, "the data file of the cache entry was changed or truncated", now);
    }

    /// Ends a request: its row is counted, and its session goes on.
    pub(super) fn end_request(&mut self, conn: ConnId, outcome: Outcome, why: &'static str, done: Nanos) {
        let mut row = self.row(conn, outcome, done);
        let times = &mut self.streams[conn.index()].times;
        if outcome == Outcome::Succeeded && !row.has(Row::WARMUP) && times.count > 1 {
            self.tally.count_gaps(&self.stamps, times);
        }
        let trip = &mut self.trips[conn.index()];
        let keeps = std::mem::take(&mut trip.keeps);
        if std::mem::take(&mut trip.kept_bytes) > limits::KEPT_RESPONSE_BYTES_MAX {
            row.flags |= Row::KEPT_IN_PART;
        }
        let (first, last) = self.kept.slot(conn.index()).split_at(limits::SAMPLE_BYTES);
        let what = if why.is_empty() && outcome == Outcome::Failed(ErrorClass::Tls) { self.tls.words() } else { why };
        let evidence =
            Evidence { what, first: &first[..trip.kept_first as usize], last: &last[..trip.kept_last as usize] };
        self.tally.count(&row, trip.total_bytes.saturating_sub(u64::from(trip.head_bytes)), outcome, evidence);
        if let Some(rows) = &mut self.rows {
            rows.push(&mut self.io, &mut row, &self.stamps, times, keeps);
        }
        self.stamps.release(times);
        self.left_prefill(conn);
        let c = &mut self.conns[conn.index()];
        let (record, instance) = (c.record, c.instance);
        self.warm_in_flight -= u64::from(c.has(flag::WARMUP));
        c.clear(flag::WAITED | flag::OF_REQUEST);
        c.marks &= !mark::OF_REQUEST;
        self.deadlines[conn.index()] = Nanos::NONE;
        self.counts.in_flight -= 1;
        match outcome {
            Outcome::Succeeded => {
                self.counts.succeeded += 1;
                self.shared.live[self.index].latency(done.since(row.start));
            }
            Outcome::Failed(_) if row.has(Row::WARMUP) => {}
            Outcome::Failed(_) => {
                self.counts.failed += 1;
                self.hold_to_error_bound();
            }
            Outcome::Cut => {}
        }
        let end = done.since(self.start);
        if self.agenda.ended(record, instance, outcome == Outcome::Succeeded, end) {
            self.conns[conn.index()].marks |= mark::GOES_ON;
        }
    }

    /// The request has its first token, or will have none.
    #[inline]
    fn left_prefill(&mut self, conn: ConnId) {
        let c = &mut self.conns[conn.index()];
        if c.is(mark::PREFILL) {
            c.marks &= !mark::PREFILL;
            self.prefilling -= 1;
        }
    }

    /// A measured request failed: ends the run when that was one too many over all workers.
    #[cold]
    fn hold_to_error_bound(&mut self) {
        let leg = &self.shared.legs[self.phase];
        let Some(bound) = leg.plan.stop.max_errors else { return };
        self.show_ends();
        let (succeeded, failed) = Ends::total(&leg.ends);
        if too_many_errors(bound, succeeded, failed, leg.plan.stop.requests) {
            self.shared.control.halt_for_errors();
        }
    }

    /// The row of a slot's request.
    #[inline]
    fn row(&mut self, conn: ConnId, outcome: Outcome, done: Nanos) -> Row {
        let view = &self.shared.view;
        let c = &self.conns[conn.index()];
        let trip = &self.trips[conn.index()];
        let mut row = Row {
            due: trip.due,
            start: c.start,
            sent: trip.sent,
            first_byte: c.first_byte,
            done,
            connect_ns: trip.connect_ns,
            tls_ns: trip.tls_ns,
            bytes_sent: self.tls.wire(conn).unwrap_or(trip.sent_bytes),
            bytes_received: trip.received_bytes,
            record: c.record.0,
            session: view.session(c.record),
            turn: view.turn(c.record),
            instance: (trip.unit / self.shared.legs[self.phase].roots.count().max(1)) as u32,
            connection: conn.0,
            connection_use: trip.uses,
            input_tokens: view.input_tokens(c.record).unwrap_or(NONE_U32),
            status: c.status,
            worker: self.index as u16,
            target: c.target,
            outcome: outcome.code(),
            flags: Row::INPUT_FROM_INDEX,
            ..Row::EMPTY
        };
        for (of, to) in [(flag::KEPT, Row::REUSED), (flag::WARMUP, Row::WARMUP), (flag::ZERO_COPY, Row::ZERO_COPY)] {
            if c.has(of) {
                row.flags |= to;
            }
        }
        if c.is(mark::CANCELLED) {
            row.flags |= Row::CANCELLED;
        }
        if c.has(flag::SCAN) {
            self.streams[conn.index()].complete(&mut row, c.has(flag::STREAM));
        }
        row
    }
}
