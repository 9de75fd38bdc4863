//! Cores: which are allowed, which are siblings, pinning a thread, what a thread has cost.

use std::{fs, path::Path};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::resource::{UsageWho, getrusage},
    unistd::Pid,
};

use crate::data::{Error, Result};

/// The cores that this process may run on, rising.
pub fn allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    let cores: Vec<u32> = (0..CpuSet::count()).filter(|&c| set.is_set(c).unwrap_or(false)).map(|c| c as u32).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// The allowed cores in the order in which workers should take them: one of each physical core first, siblings after.
pub fn allowed_spread() -> Vec<u32> {
    spread(&allowed(), Path::new("/sys/devices/system/cpu"))
}

/// As [`allowed_spread`] for any list of cores and any sysfs root (so that topologies can be tested).
pub fn spread(cores: &[u32], root: &Path) -> Vec<u32> {
    let mut ranked: Vec<(usize, u32)> = Vec::with_capacity(cores.len());
    let mut seen: Vec<(u32, u32)> = Vec::new();
    for &core in cores {
        let topology = root.join(format!("cpu{core}/topology"));
        let read = |name: &str| fs::read_to_string(topology.join(name)).ok().and_then(|s| s.trim().parse::<u32>().ok());
        let physical = (read("physical_package_id").unwrap_or(0), read("core_id").unwrap_or(core));
        ranked.push((seen.iter().filter(|&&p| p == physical).count(), core));
        seen.push(physical);
    }
    ranked.sort_by_key(|&(rank, core)| (rank, core));
    ranked.into_iter().map(|(_, core)| core).collect()
}

/// Parses a core list: `0-3,8`.
pub fn parse_list(text: &str) -> Result<Vec<u32>> {
    let wrong = || Error::usage(format!("--cores '{text}': expected a list such as 0-3,8"));
    let mut cores = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let from: u32 = from.trim().parse().map_err(|_| wrong())?;
        let to: u32 = to.trim().parse().map_err(|_| wrong())?;
        if to < from || to >= CpuSet::count() as u32 {
            return Err(wrong());
        }
        cores.extend(from..=to);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// Model name of the first core, as the kernel tells it; its architecture where it tells none.
pub fn model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

/// Pins the calling thread to one core.
pub fn pin(core: u32) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core as usize).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|errno| {
        Error::Environment {
            call: "sched_setaffinity",
            what: format!("core {core}: {errno}"),
            cure: "choose allowed cores with --cores, or leave placement to the scheduler with --no-pin".into(),
        }
    })
}

/// Lets the calling thread run when nobody else wants its core: work that may come late, and must not make others late.
pub fn stand_back() {
    // SAFETY: no pointers; on Linux the call is about the calling thread alone, and lowering its own priority is always allowed.
    unsafe { libc::nice(19) };
}

/// CPU time and context switches of one thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// User time, nanoseconds.
    pub user_ns: u64,
    /// System time, nanoseconds.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// Times that it touched a page that had to be read from a disk, and waited for it.
    pub major_faults: u64,
}

/// What the calling thread has cost.
pub fn thread_usage() -> Usage {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Usage::default() };
    let ns = |t: nix::sys::time::TimeVal| t.tv_sec() as u64 * 1_000_000_000 + t.tv_usec() as u64 * 1_000;
    Usage {
        user_ns: ns(usage.user_time()),
        system_ns: ns(usage.system_time()),
        voluntary: usage.voluntary_context_switches() as u64,
        involuntary: usage.involuntary_context_switches() as u64,
        major_faults: usage.major_page_faults() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(parse_list("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("2,1,1").unwrap(), [1, 2]);
        for wrong in ["", "a", "3-1", "0-", "-1", "99999"] {
            assert!(parse_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn physical_cores_come_before_siblings() {
        let root = tempfile::tempdir().unwrap();
        for (cpu, core) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            let dir = root.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("physical_package_id"), "0\n").unwrap();
            fs::write(dir.join("core_id"), format!("{core}\n")).unwrap();
        }
        assert_eq!(spread(&[0, 1, 2, 3], root.path()), [0, 2, 1, 3]);
        assert_eq!(spread(&[7, 9], root.path()), [7, 9], "no topology: as they are");
    }

    #[test]
    fn a_pinned_thread_is_allowed_on_that_core_alone() {
        std::thread::spawn(|| {
            let core = *allowed().last().unwrap();
            pin(core).unwrap();
            assert_eq!(allowed(), [core]);
        })
        .join()
        .unwrap();
    }
}
