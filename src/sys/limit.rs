//! Limits of the process and of the kernel: files, locked memory, io_uring switches, port range.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::data::{Error, Result, limits};

/// Soft and hard limit of open files.
pub fn open_files() -> (u64, u64) {
    getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024))
}

/// Limit of locked memory, bytes; none when unlimited.
pub fn locked_memory() -> Option<u64> {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft != nix::sys::resource::RLIM_INFINITY => Some(soft),
        _ => None,
    }
}

/// Raises the soft limit of open files to the hard one when `connections` need it, and refuses when that is still too few.
pub fn ensure_files(connections: u64) -> Result<()> {
    let needed = connections + limits::FILES_RESERVED;
    let (soft, hard) = open_files();
    if soft >= needed {
        return Ok(());
    }
    let raised = hard.max(soft);
    let got = if setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft };
    if got >= needed {
        return Ok(());
    }
    Err(Error::Environment {
        call: "open files limit",
        what: format!("{got} allowed, {needed} needed for {connections} connections"),
        cure: format!("raise it with `ulimit -n {needed}` (or LimitNOFILE=), or ask for fewer with -c"),
    })
}

/// Memory that the pages of files can have, bytes: what the machine has available, or the control group's limit where that is
/// less. Everything, where neither can be read.
pub fn page_memory() -> u64 {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let group = super::cgroup::limits().memory_bytes.unwrap_or(u64::MAX);
    available.map_or(u64::MAX, |kib| kib << 10).min(group)
}

/// `kernel.io_uring_disabled`: 0 on, 1 for the privileged alone, 2 off; none where the kernel has no such switch.
pub fn io_uring_disabled() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

/// First and last local port of outgoing connections.
pub fn local_ports() -> Option<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut parts = text.split_whitespace().map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// True when the kernel can encrypt TLS records itself, none when that cannot be read.
pub fn kernel_tls() -> Option<bool> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").ok()?;
    Some(text.split_whitespace().any(|ulp| ulp == "tls"))
}

/// Kernel release, as `uname -r`.
pub fn kernel_release() -> String {
    nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default()
}
