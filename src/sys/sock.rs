//! Sockets to a target: made, set up and named here, driven by the ring.

use std::{io, os::fd::OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::data::{Error, Result, plan::Address};

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
/// Nagle's delay.
pub(in crate::sys) fn open(address: &KernelAddress) -> io::Result<OwnedFd> {
    let unix = address.domain() == Domain::UNIX;
    let socket = Socket::new(address.domain(), Type::STREAM, (!unix).then_some(Protocol::TCP))?;
    if !unix {
        socket.set_tcp_nodelay(true)?;
    }
    Ok(socket.into())
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
