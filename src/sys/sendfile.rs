//! `sendfile(2)` on a socket of the ring: bodies that lie in the page cache reach the socket without being copied.
//!
//! The call is made by the ring's own thread and never waits for the peer: the socket is non-blocking for its length alone. It
//! would wait for a disk, so callers ask for bodies that are resident.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        sendfile::sendfile64,
        socket::{MsgFlags, send},
    },
};

use crate::data::{Span, limits};

/// How far a send came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sys) struct Sent {
    /// Bytes that the socket took, head included.
    pub bytes: u64,
    /// The socket has no room: the rest goes when it is writable.
    pub blocked: bool,
}

/// Sends `head`, then the spans of `file` after their first `skip` bytes, as far as the socket takes them.
///
/// Errors: the socket's. `UnexpectedEof` says that the file ends before a span does.
pub(in crate::sys) fn send_file(
    socket: BorrowedFd<'_>,
    head: &[u8],
    file: BorrowedFd<'_>,
    spans: &[Span],
    skip: u64,
) -> io::Result<Sent> {
    let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
    fcntl(socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let mut sent = Sent { bytes: 0, blocked: false };
    let done = send_all(socket, head, file, spans, skip, &mut sent);
    fcntl(socket, FcntlArg::F_SETFL(flags))?;
    match done {
        Ok(()) => Ok(sent),
        Err(Errno::EAGAIN) => Ok(Sent { blocked: true, ..sent }),
        // What was taken is told first; the next call meets the error again.
        Err(_) if sent.bytes > 0 => Ok(sent),
        Err(Errno::ENODATA) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(errno) => Err(errno.into()),
    }
}

fn send_all(
    socket: BorrowedFd<'_>,
    head: &[u8],
    file: BorrowedFd<'_>,
    spans: &[Span],
    skip: u64,
    sent: &mut Sent,
) -> Result<(), Errno> {
    let mut rest = head;
    while !rest.is_empty() {
        let more = MsgFlags::from_bits_retain(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE);
        let n = send(socket.as_raw_fd(), rest, more)?;
        sent.bytes += n as u64;
        rest = &rest[n..];
    }
    let mut skip = skip;
    for span in spans {
        if skip >= span.bytes {
            skip -= span.bytes;
            continue;
        }
        let (mut at, end) = ((span.offset + skip) as i64, span.end() as i64);
        skip = 0;
        while at < end {
            let most = ((end - at) as u64).min(limits::SEND_BYTES_MAX.saturating_sub(sent.bytes)) as usize;
            if most == 0 {
                return Ok(());
            }
            match sendfile64(socket.as_fd(), file, Some(&mut at), most)? {
                0 => return Err(Errno::ENODATA),
                n => sent.bytes += n as u64,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    #[test]
    fn head_and_spans_arrive_in_order_and_a_full_socket_is_told() {
        let mut file = tempfile::tempfile().unwrap();
        let body: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        file.write_all(&body).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let spans = [Span { offset: 100, bytes: 50 }, Span { offset: 7, bytes: 2_900_000 }];
        let want: Vec<u8> = [b"HEAD".as_slice(), &body[100..150], &body[7..2_900_007]].concat();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            got
        });
        let (mut total, mut head) = (0u64, b"HEAD".as_slice());
        while total < want.len() as u64 {
            let skip = total.saturating_sub(4);
            let sent = send_file(client.as_fd(), head, file.as_fd(), &spans, skip).unwrap();
            total += sent.bytes;
            head = &b"HEAD"[(total as usize).min(4)..];
        }
        drop(client);
        assert!(reader.join().unwrap() == want);
    }

    #[test]
    fn a_file_that_is_too_short_and_a_peer_that_is_gone_are_errors() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100]).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let spans = [Span { offset: 0, bytes: 200 }];
        let sent = send_file(ours.as_fd(), b"", file.as_fd(), &spans, 0).unwrap();
        assert_eq!((sent.bytes, sent.blocked), (100, false));
        let error = send_file(ours.as_fd(), b"", file.as_fd(), &spans, 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(theirs);
        let error = send_file(ours.as_fd(), b"x", file.as_fd(), &spans, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let flags = OFlag::from_bits_retain(fcntl(ours.as_fd(), FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "the socket is left as it was");
    }
}
