//! What the control groups of this process allow: less CPU time or memory than the machine has, in both versions of the files.

use std::{fs, path::Path};

/// Limits of all groups that this process is in, the tightest of each kind; none where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// CPU time a second, in cores.
    pub cores: Option<f64>,
    /// Memory, file pages included, bytes.
    pub memory_bytes: Option<u64>,
}

/// The limits of this process.
pub fn limits() -> Limits {
    of(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/sys/fs/cgroup"))
}

/// As [`limits`] for the text of a `/proc/PID/cgroup` and any root of the group files (so that groups can be tested).
pub fn of(membership: &str, root: &Path) -> Limits {
    let mut all = Limits::default();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        let has = |controller| controllers.split(',').any(|c| c == controller);
        if controllers.is_empty() {
            up(root, path, |at| {
                all.cores = tighter(all.cores, quota_v2(&at.join("cpu.max")));
                all.memory_bytes = tighter(all.memory_bytes, number(&at.join("memory.max")));
            });
        } else if has("cpu") {
            // The mount has the name of the controllers that share it, and mostly a link for each.
            for mount in ["cpu", controllers] {
                up(&root.join(mount), path, |at| all.cores = tighter(all.cores, quota_v1(at)));
            }
        } else if has("memory") {
            up(&root.join("memory"), path, |at| {
                let limit = number(&at.join("memory.limit_in_bytes"));
                // No limit is the largest number of whole pages.
                all.memory_bytes = tighter(all.memory_bytes, limit.filter(|&bytes| bytes < 1 << 60));
            });
        }
    }
    all
}

/// Calls `look` for a group's folder and those above it, to the root: inside a container the group's own path may not be there.
fn up(root: &Path, path: &Path, mut look: impl FnMut(&Path)) {
    for part in path.ancestors() {
        look(&root.join(part));
    }
}

fn tighter<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b < a { b } else { a }),
        (a, b) => a.or(b),
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn quota_v2(path: &Path) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let mut parts = text.split_whitespace();
    cores(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)
}

/// A quota of -1 is none.
fn quota_v1(folder: &Path) -> Option<f64> {
    cores(number(&folder.join("cpu.cfs_quota_us"))?, number(&folder.join("cpu.cfs_period_us"))?)
}

fn cores(quota_us: u64, period_us: u64) -> Option<f64> {
    (period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_tightest_limit_of_a_group_and_those_above_it_counts() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            &[
                ("a/cpu.max", "150000 100000\n"),
                ("a/b/cpu.max", "max 100000\n"),
                ("a/memory.max", "max\n"),
                ("a/b/memory.max", "1048576\n"),
            ],
        );
        let limits = of("0::/a/b\n", root.path());
        assert_eq!(limits, Limits { cores: Some(1.5), memory_bytes: Some(1 << 20) });
        assert_eq!(of("0::/\n", root.path()), Limits::default());
        assert_eq!(of("", root.path()), Limits::default());
    }

    #[test]
    fn the_older_files_are_read_too() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            &[
                ("cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n"),
                ("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"),
                ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
                ("memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let limits = of("4:memory:/x\n3:cpu,cpuacct:/x\n", root.path());
        assert_eq!(limits, Limits { cores: Some(0.5), memory_bytes: None });
    }
}
