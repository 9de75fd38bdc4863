//! What the engine needs of a ring, so that the same worker runs on the kernel's and on a simulated one.

use std::ops::Range;

use crate::{
    data::{ConnId, Result, Span},
    sys::ring::{BufferId, Completion, Copying, Op, Ring, SendRefused},
};

/// A ring with connections in it. The contract of each call is that of [`Ring`]'s method of the same name.
pub trait Io {
    /// Opens a slot's socket and begins to connect it.
    fn connect(&mut self, conn: ConnId, generation: u16, address: usize) -> std::io::Result<()>;
    /// The slot's send area.
    fn head_mut(&mut self, conn: ConnId) -> &mut [u8];
    /// Copies a body behind a head in the send area.
    fn append_body(&mut self, conn: ConnId, head: usize, spans: &[Span]) -> Result<usize, SendRefused>;
    /// Sends a part of the send area.
    fn send_area(&mut self, conn: ConnId, generation: u16, from: usize, to: usize);
    /// Sends a part of the send area, and spans of the map behind it.
    fn send_vector(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
        copying: Copying,
    ) -> Result<u64, SendRefused>;
    /// Sends a part of the send area and spans behind it from the file below the map, without copying.
    fn send_file(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
    ) -> Result<(), SendRefused>;
    /// The first stretch of spans that has to be read from the disk.
    fn cold(&mut self, spans: &[Span]) -> Option<Range<u64>>;
    /// Brings a stretch of the map into memory.
    fn fetch(&mut self, conn: ConnId, generation: u16, range: &Range<u64>);
    /// A stretch was brought in.
    fn fetched(&mut self, range: Range<u64>);
    /// Arms the receive.
    fn recv(&mut self, conn: ConnId, generation: u16);
    /// Ends both directions.
    fn shutdown(&mut self, conn: ConnId);
    /// Says the last few bytes before a shutdown, without waiting.
    fn say_last(&mut self, conn: ConnId, bytes: &[u8]);
    /// Cancels the slot's connect or send.
    fn cancel(&mut self, conn: ConnId, generation: u16, op: Op);
    /// Drops what the peer does not acknowledge, so that the kernel lets go of it.
    fn abort(&mut self, conn: ConnId);
    /// Closes the socket.
    fn close(&mut self, conn: ConnId);
    /// Submits, and waits for a completion for at most so long; 0 does not wait.
    fn submit_and_wait(&mut self, timeout_ns: u64) -> Result<()>;
    /// True when a completion is there, or work that makes one.
    fn has_completions(&mut self) -> bool;
    /// Copies completions out.
    fn completions(&mut self, out: &mut [Completion]) -> usize;
    /// Bytes of a lent buffer.
    fn received(&self, buffer: BufferId, bytes: usize) -> &[u8];
    /// Gives a lent buffer back.
    fn give_back(&mut self, buffer: BufferId);
    /// Shows the kernel the buffers that were given back.
    fn publish(&mut self);
    /// Operations in the kernel.
    fn in_kernel(&self) -> u64;
    /// Zero-copy sends can be asked for.
    fn zero_copy(&self) -> bool;
    /// Times that the submission queue was full, and completion overflows.
    fn pressure(&self) -> (u64, u64);
    /// Adds bytes to a spool.
    fn append(&mut self, spool: usize, bytes: &[u8]);
    /// Hands over what the first so many spools hold.
    fn flush_spools(&mut self, spools: usize);
    /// True while bytes of a spool are in the kernel.
    fn writing(&self) -> bool;
    /// Ends them: what failed, by spool, and how many blocks this thread had to write itself.
    fn close_spools(&mut self, spools: usize) -> (Vec<Option<String>>, u64);
}

impl Io for Ring {
    #[inline]
    fn connect(&mut self, conn: ConnId, generation: u16, address: usize) -> std::io::Result<()> {
        Ring::connect(self, conn, generation, address)
    }
    #[inline]
    fn head_mut(&mut self, conn: ConnId) -> &mut [u8] {
        Ring::head_mut(self, conn)
    }
    #[inline]
    fn append_body(&mut self, conn: ConnId, head: usize, spans: &[Span]) -> Result<usize, SendRefused> {
        Ring::append_body(self, conn, head, spans)
    }
    #[inline]
    fn send_area(&mut self, conn: ConnId, generation: u16, from: usize, to: usize) {
        Ring::send_area(self, conn, generation, from, to);
    }
    #[inline]
    fn send_vector(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
        copying: Copying,
    ) -> Result<u64, SendRefused> {
        Ring::send_vector(self, conn, generation, head, spans, skip, copying)
    }
    fn send_file(
        &mut self,
        conn: ConnId,
        generation: u16,
        head: (usize, usize),
        spans: &[Span],
        skip: u64,
    ) -> Result<(), SendRefused> {
        Ring::send_file(self, conn, generation, head, spans, skip)
    }
    #[inline]
    fn cold(&mut self, spans: &[Span]) -> Option<Range<u64>> {
        Ring::cold(self, spans)
    }
    fn fetch(&mut self, conn: ConnId, generation: u16, range: &Range<u64>) {
        Ring::fetch(self, conn, generation, range);
    }
    fn fetched(&mut self, range: Range<u64>) {
        Ring::fetched(self, range);
    }
    #[inline]
    fn recv(&mut self, conn: ConnId, generation: u16) {
        Ring::recv(self, conn, generation);
    }
    fn shutdown(&mut self, conn: ConnId) {
        Ring::shutdown(self, conn);
    }
    fn say_last(&mut self, conn: ConnId, bytes: &[u8]) {
        Ring::say_last(self, conn, bytes);
    }
    fn cancel(&mut self, conn: ConnId, generation: u16, op: Op) {
        Ring::cancel(self, conn, generation, op);
    }
    fn abort(&mut self, conn: ConnId) {
        Ring::abort(self, conn);
    }
    fn close(&mut self, conn: ConnId) {
        Ring::close(self, conn);
    }
    #[inline]
    fn submit_and_wait(&mut self, timeout_ns: u64) -> Result<()> {
        Ring::submit_and_wait(self, timeout_ns)
    }
    #[inline]
    fn has_completions(&mut self) -> bool {
        Ring::has_completions(self)
    }
    #[inline]
    fn completions(&mut self, out: &mut [Completion]) -> usize {
        Ring::completions(self, out)
    }
    #[inline]
    fn received(&self, buffer: BufferId, bytes: usize) -> &[u8] {
        Ring::received(self, buffer, bytes)
    }
    #[inline]
    fn give_back(&mut self, buffer: BufferId) {
        Ring::give_back(self, buffer);
    }
    #[inline]
    fn publish(&mut self) {
        Ring::publish(self);
    }
    fn in_kernel(&self) -> u64 {
        Ring::in_kernel(self)
    }
    fn zero_copy(&self) -> bool {
        Ring::zero_copy(self)
    }
    fn pressure(&self) -> (u64, u64) {
        Ring::pressure(self)
    }
    #[inline]
    fn append(&mut self, spool: usize, bytes: &[u8]) {
        Ring::append(self, spool, bytes);
    }
    fn flush_spools(&mut self, spools: usize) {
        Ring::flush_spools(self, spools);
    }
    fn writing(&self) -> bool {
        Ring::writing(self)
    }
    fn close_spools(&mut self, spools: usize) -> (Vec<Option<String>>, u64) {
        Ring::close_spools(self, spools)
    }
}
