//! `ringload doctor`: what the kernel, the limits and the cores here allow, each with its cure.

use serde::Serialize;

use super::{flags::DoctorFlags, terminal};
use crate::{
    data::{Result, limits},
    sys::{cpu, limit, ring},
};

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mark {
    /// As it should be.
    Ok,
    /// Works, with less.
    Warn,
    /// Does not work.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    mark: Mark,
    what: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { mark: Mark::Ok, what, found: found.into(), cure: None }
    }

    fn with(mark: Mark, what: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { mark, what, found: found.into(), cure: Some(cure.into()) }
    }
}

/// Prints the findings. 0 when everything that a run needs is there, else 3.
///
/// Errors: standard output cannot be written.
pub fn doctor(flags: &DoctorFlags) -> Result<u8> {
    let findings = findings();
    let text = if flags.json {
        let mut text = serde_json::to_string_pretty(&findings).unwrap_or_default();
        text.push('\n');
        text
    } else {
        render(&findings)
    };
    terminal::result(&text)?;
    Ok(if findings.iter().any(|f| f.mark == Mark::Fail) { 3 } else { 0 })
}

fn findings() -> Vec<Finding> {
    let mut all = vec![Finding::ok("kernel", limit::kernel_release())];
    all.extend(io_uring());
    all.push(locked_memory());
    all.push(open_files());
    all.push(local_ports());
    all.push(kernel_tls());
    all.push(cores());
    all
}

fn io_uring() -> Vec<Finding> {
    let mut all = Vec::new();
    all.push(match limit::io_uring_disabled() {
        Some(n @ 1..) => Finding::with(
            if n == 2 { Mark::Fail } else { Mark::Warn },
            "kernel.io_uring_disabled",
            n.to_string(),
            "sysctl kernel.io_uring_disabled=0 as root (1 leaves it to the privileged)",
        ),
        Some(n) => Finding::ok("kernel.io_uring_disabled", n.to_string()),
        None => Finding::ok("kernel.io_uring_disabled", "no such switch in this kernel"),
    });
    let lacking = match ring::lacking() {
        Ok(lacking) => lacking,
        Err(error) => {
            let text = error.to_string();
            let (found, cure) = text.split_once("; ").unwrap_or((text.as_str(), "use a kernel of 5.19 or later"));
            all.push(Finding::with(Mark::Fail, "io_uring", found, cure));
            return all;
        }
    };
    all.push(match lacking.is_empty() {
        true => Finding::ok("io_uring", "works, with every ring flag that is used"),
        false => Finding::with(Mark::Warn, "io_uring", lacking.join("; "), "a kernel of 6.6 or later has them all"),
    });
    for (name, there) in ring::probe().unwrap_or_default() {
        all.push(match (name, there) {
            (_, true) => Finding::ok("io_uring operation", name),
            ("SEND_ZC" | "SENDMSG_ZC", false) => Finding::with(
                Mark::Warn,
                "io_uring operation",
                format!("{name} is missing: large bodies are copied"),
                "a kernel of 6.1 or later has it",
            ),
            _ => Finding::with(
                Mark::Fail,
                "io_uring operation",
                format!("{name} is missing"),
                "use a kernel of 5.19 or later",
            ),
        });
    }
    all
}

fn locked_memory() -> Finding {
    const ENOUGH: u64 = 64 << 20;
    match limit::locked_memory() {
        None => Finding::ok("locked memory (memlock)", "unlimited"),
        Some(bytes) if bytes >= ENOUGH => Finding::ok("locked memory (memlock)", format!("{} MiB", bytes >> 20)),
        Some(bytes) => Finding::with(
            Mark::Warn,
            "locked memory (memlock)",
            format!("{} KiB: about that much can be in flight without copying", bytes >> 10),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity; without it large bodies fall back to copying",
        ),
    }
}

fn open_files() -> Finding {
    let (soft, hard) = limit::open_files();
    let found = format!("{soft} now, {hard} at most (raised by itself)");
    if hard >= 65_536 {
        return Finding::ok("open files (nofile)", found);
    }
    let cure = format!("ulimit -n 1048576 for more than {} connections", hard.saturating_sub(limits::FILES_RESERVED));
    Finding::with(Mark::Warn, "open files (nofile)", found, cure)
}

fn local_ports() -> Finding {
    match limit::local_ports() {
        Some((first, last)) => {
            let n = last.saturating_sub(first) + 1;
            let found = format!("{first} to {last}: {n} connections to one address from one source");
            if n >= 20_000 {
                return Finding::ok("local ports", found);
            }
            Finding::with(Mark::Warn, "local ports", found, "sysctl net.ipv4.ip_local_port_range='1024 65535'")
        }
        None => Finding::with(Mark::Warn, "local ports", "not known", "mount /proc"),
    }
}

/// Not a warning either way: this version encrypts in user space, whatever the kernel offers.
fn kernel_tls() -> Finding {
    let found = match limit::kernel_tls() {
        Some(true) => "offered; not used: TLS is encrypted in user space",
        Some(false) => "not offered; TLS is encrypted in user space",
        None => "not known; TLS is encrypted in user space",
    };
    Finding::ok("kernel TLS (tcp_available_ulp)", found)
}

fn cores() -> Finding {
    let allowed = cpu::allowed_spread();
    let list = allowed.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if allowed.len() > 1 {
        return Finding::ok("allowed cores", format!("{list} (physical cores first)"));
    }
    let cure = "allow more (taskset, cpuset, container limits): client and builtin: server share this one";
    Finding::with(Mark::Warn, "allowed cores", list, cure)
}

fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        let mark = match f.mark {
            Mark::Ok => "ok  ",
            Mark::Warn => "warn",
            Mark::Fail => "FAIL",
        };
        text.push_str(&format!("{mark}  {:31} {}\n", f.what, f.found));
        if let Some(cure) = &f.cure {
            text.push_str(&format!("      {:31} -> {cure}\n", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_is_not_ok_has_a_cure() {
        let all = findings();
        assert!(all.iter().all(|f| f.mark == Mark::Ok || f.cure.is_some()));
        let text = render(&all);
        assert!(text.contains("kernel TLS") && text.contains("user space"));
        assert!(text.contains("io_uring") && text.contains("memlock") && text.contains("nofile"));
    }
}
