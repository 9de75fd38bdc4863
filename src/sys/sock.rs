//! Sockets to a target: made, set up and named here, driven by the ring.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::data::{Error, Result, net::SocketOptions, plan::Address};

/// An address in the form that the kernel takes. Its memory stays where it is for as long as the value lives in a `Box`.
pub(in crate::sys) type KernelAddress = SockAddr;

/// The kernel's form of an address.
pub(in crate::sys) fn kernel_address(address: &Address) -> Result<KernelAddress> {
    match address {
        Address::Tcp(addr) => Ok(SockAddr::from(*addr)),
        Address::UnixPath(path) => {
            SockAddr::unix(path).map_err(|e| Error::usage(format!("unix socket path {}: {e}", path.display())))
        }
        Address::UnixAbstract(name) => {
            let mut bytes = Vec::with_capacity(name.len() + 1);
            bytes.push(0);
            bytes.extend_from_slice(name);
            let path: &std::path::Path =
                std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&bytes));
            SockAddr::unix(path).map_err(|e| Error::usage(format!("abstract unix socket name: {e}")))
        }
    }
}

/// A blocking socket (the ring waits in the kernel, and a non-blocking one would come back with EAGAIN instead), without
/// Nagle's delay, set to what was asked for and bound to its source when there is one.
pub(in crate::sys) fn open(
    address: &KernelAddress,
    source: Option<&KernelAddress>,
    options: &SocketOptions,
) -> io::Result<OwnedFd> {
    let unix = address.domain() == Domain::UNIX;
    let socket = Socket::new(address.domain(), Type::STREAM, (!unix).then_some(Protocol::TCP))?;
    if !unix {
        socket.set_tcp_nodelay(true)?;
        set_up(&socket, options)?;
    }
    if let Some(source) = source {
        bind_source(&socket, source)?;
    }
    Ok(socket.into())
}

/// Sets what was asked for. Buffers are set before the connect, which fixes the window's scale.
fn set_up(socket: &Socket, options: &SocketOptions) -> io::Result<()> {
    let SocketOptions { local_ports, send_buffer_bytes, recv_buffer_bytes, probe_every_s, busy_poll_us } = *options;
    if let Some((first, last)) = local_ports {
        set_u32(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, u32::from(last) << 16 | u32::from(first))?;
    }
    if let Some(bytes) = send_buffer_bytes {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = recv_buffer_bytes {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(seconds) = probe_every_s {
        let every = Duration::from_secs(u64::from(seconds));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(every).with_interval(every))?;
    }
    if let Some(micros) = busy_poll_us {
        set_u32(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, micros)?;
    }
    Ok(())
}

/// Binds to an address and no port: the port is chosen at the connect, so that one port serves as many connections as there are
/// peers (`IP_BIND_ADDRESS_NO_PORT`, ip(7)).
fn bind_source(socket: &Socket, source: &KernelAddress) -> io::Result<()> {
    set_u32(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    socket.bind(source)
}

/// `IP_LOCAL_PORT_RANGE` of ip(7), since 6.3; libc does not name it.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;

fn set_u32(socket: &Socket, level: libc::c_int, name: libc::c_int, value: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let bytes = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `value` lives and has `bytes` bytes for as long as the call takes.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tries what every connection will be set to, once, before anything is sent. Returns what the kernel gave less of, in words.
///
/// Errors: a source that is no address of this machine, an option that is refused, each with its cure.
pub fn check(sources: &[IpAddr], options: &SocketOptions) -> Result<Vec<String>> {
    for source in sources {
        let address = SockAddr::from(SocketAddr::new(*source, 0));
        let bound = Socket::new(address.domain(), Type::STREAM, Some(Protocol::TCP)).and_then(|s| s.bind(&address));
        bound.map_err(|e| Error::Environment {
            call: "bind",
            what: format!("--source-ip {source}: {e}"),
            cure: format!("give addresses of this machine; `ip addr add {source}/32 dev lo` adds one"),
        })?;
    }
    let plain = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(|e| refused("socket", "", &e))?;
    let only = |of: SocketOptions| set_up(&plain, &of);
    let SocketOptions { local_ports, send_buffer_bytes, recv_buffer_bytes, probe_every_s, busy_poll_us } = *options;
    let none = SocketOptions::default();
    for (flag, of) in [
        ("--local-ports", SocketOptions { local_ports, ..none }),
        ("--sndbuf", SocketOptions { send_buffer_bytes, ..none }),
        ("--rcvbuf", SocketOptions { recv_buffer_bytes, ..none }),
        ("--tcp-keepalive", SocketOptions { probe_every_s, ..none }),
        ("--busy-poll", SocketOptions { busy_poll_us, ..none }),
    ] {
        only(of).map_err(|e| refused("setsockopt", flag, &e))?;
    }
    // The kernel keeps double of what it is asked for, and says nothing when it takes less.
    let mut notes = Vec::new();
    for (flag, asked, got, limit) in [
        ("--sndbuf", send_buffer_bytes, plain.send_buffer_size(), "wmem_max"),
        ("--rcvbuf", recv_buffer_bytes, plain.recv_buffer_size(), "rmem_max"),
    ] {
        if let (Some(asked), Ok(got)) = (asked, got)
            && got / 2 < asked as usize
        {
            notes.push(format!(
                "{flag}: the kernel gives {} bytes of the {asked} asked for; raise net.core.{limit}",
                got / 2
            ));
        }
    }
    Ok(notes)
}

fn refused(call: &'static str, flag: &str, error: &io::Error) -> Error {
    let cure = match (flag, error.raw_os_error()) {
        ("--local-ports", Some(libc::ENOPROTOOPT)) => {
            "a kernel of 6.3 or later has it; else set net.ipv4.ip_local_port_range"
        }
        ("--busy-poll", Some(libc::EPERM)) => "run with CAP_NET_ADMIN, or set net.core.busy_read as high",
        ("--busy-poll", Some(libc::ENOPROTOOPT)) => "this kernel is built without busy polling: leave it out",
        _ => "leave it out, or ask for less",
    };
    Error::Environment { call, what: format!("{flag}: {error}"), cure: cure.to_owned() }
}

/// Hands the kernel the last few bytes of a connection that is about to be shut down, without waiting: what does not fit is not
/// said.
pub(in crate::sys) fn say_last(fd: &OwnedFd, bytes: &[u8]) {
    use nix::sys::socket::{MsgFlags, send};
    use std::os::fd::AsRawFd;
    let _ = send(fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
}

/// Closes with a reset; what is not acknowledged is dropped. Errors mean that the connection is gone already.
pub(in crate::sys) fn reset(fd: OwnedFd) {
    let _ = socket2::SockRef::from(&fd).set_linger(Some(std::time::Duration::ZERO));
}

/// Ends both directions, so that the peer sees a FIN and what is armed in the ring completes. Errors mean that it is over
/// already.
pub(in crate::sys) fn shutdown(fd: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let _ = nix::sys::socket::shutdown(fd.as_raw_fd(), nix::sys::socket::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_socket_and_a_source_is_bound_without_a_port() {
        use std::os::fd::AsRawFd;
        let to = SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 9)));
        let source = SockAddr::from(SocketAddr::from(([127, 0, 0, 5], 0)));
        let options = SocketOptions {
            send_buffer_bytes: Some(20_000),
            recv_buffer_bytes: Some(30_000),
            probe_every_s: Some(7),
            ..SocketOptions::default()
        };
        let fd = open(&to, Some(&source), &options).unwrap();
        let socket = socket2::SockRef::from(&fd);
        let bound = socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(bound, SocketAddr::from(([127, 0, 0, 5], 0)), "no port before the connect");
        assert_eq!((socket.send_buffer_size().unwrap(), socket.recv_buffer_size().unwrap()), (40_000, 60_000));
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(7));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
        assert!(fd.as_raw_fd() > 2);
        // What is not asked for is left to the kernel.
        let plain = open(&to, None, &SocketOptions::default()).unwrap();
        let own = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let plain = socket2::SockRef::from(&plain);
        assert_eq!(plain.send_buffer_size().unwrap(), own.send_buffer_size().unwrap());
        assert_eq!(plain.recv_buffer_size().unwrap(), own.recv_buffer_size().unwrap());
        assert!(!plain.keepalive().unwrap() && plain.tcp_nodelay().unwrap());
    }

    fn option(fd: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<u32> {
        use std::os::fd::AsRawFd;
        let (mut value, mut bytes) = (0u32, size_of::<u32>() as libc::socklen_t);
        // SAFETY: the descriptor is open; `value` has the `bytes` bytes that the kernel may write, and both outlive the call.
        let done = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut bytes) };
        if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn busy_polling_and_local_ports_reach_the_socket_where_the_kernel_has_them() {
        let to = SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 9)));
        let polls = SocketOptions { busy_poll_us: Some(70), ..SocketOptions::default() };
        match open(&to, None, &polls) {
            Ok(fd) => assert_eq!(option(&fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL).unwrap(), 70),
            Err(e) => {
                assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOPROTOOPT)), "{e}");
                let told = check(&[], &polls).unwrap_err().to_string();
                assert!(told.contains("--busy-poll"), "{told}");
            }
        }
        let ports = SocketOptions { local_ports: Some((40_000, 40_009)), ..SocketOptions::default() };
        match open(&to, None, &ports) {
            Ok(fd) => assert_eq!(option(&fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE).unwrap(), 40_009 << 16 | 40_000),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOPROTOOPT), "{e}"),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_the_run_and_less_than_asked_is_told() {
        let error = check(&[IpAddr::from([192, 0, 2, 1])], &SocketOptions::default()).unwrap_err().to_string();
        assert!(error.contains("--source-ip 192.0.2.1") && error.contains("ip addr add"), "{error}");
        let options = SocketOptions { send_buffer_bytes: Some(1 << 30), ..SocketOptions::default() };
        let notes = check(&[IpAddr::from([127, 0, 0, 2])], &options).unwrap();
        assert!(notes[0].contains("--sndbuf") && notes[0].contains("wmem_max"), "{notes:?}");
        assert!(check(&[], &SocketOptions::default()).unwrap().is_empty());
    }
}
