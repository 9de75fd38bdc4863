//! How connections are made: from which addresses, with which socket options, and who gets which target. A part of the plan.

use std::net::IpAddr;

/// The part of the plan that is about connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// Source addresses (`--source-ip`); empty leaves them to the kernel. A slot keeps its own.
    pub sources: Vec<IpAddr>,
    /// What every socket is set to.
    pub options: SocketOptions,
    /// Which target a request goes to.
    pub strategy: UrlStrategy,
    /// A request whose kept connection was closed before a byte of its response came is sent again, once, on a new one.
    pub resend_stale: bool,
}

/// Socket options; what is none is left to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// First and last local port, both included (`IP_LOCAL_PORT_RANGE`).
    pub local_ports: Option<(u16, u16)>,
    /// `SO_SNDBUF`, bytes.
    pub send_buffer_bytes: Option<u32>,
    /// `SO_RCVBUF`, bytes.
    pub recv_buffer_bytes: Option<u32>,
    /// Idle time before the first keep-alive probe, and between two, seconds.
    pub probe_every_s: Option<u32>,
    /// `SO_BUSY_POLL` and the ring's NAPI polling, microseconds.
    pub busy_poll_us: Option<u32>,
}

/// `--url-strategy`: who gets what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UrlStrategy {
    /// One target after the other.
    #[default]
    RoundRobin,
    /// All turns of a session go to the same target; sessions take turns.
    Session,
}

impl Net {
    /// The source of a worker's slots: slot `s` has entry `s % len`. Workers take turns, so that the whole run spreads evenly.
    pub fn sources_of(&self, worker: usize, workers: usize) -> Vec<IpAddr> {
        let n = self.sources.len();
        (0..n).map(|k| self.sources[(worker + k * workers) % n]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_all_workers_spread_evenly_over_the_sources() {
        for (n, workers) in [(1, 1), (4, 1), (4, 2), (3, 2), (2, 4), (5, 3)] {
            let sources: Vec<IpAddr> = (0..n).map(|k| IpAddr::from([127, 0, 0, k + 1])).collect();
            let net = Net { sources: sources.clone(), ..Net::default() };
            let mut used = vec![0; usize::from(n)];
            for worker in 0..workers {
                let own = net.sources_of(worker, workers);
                for slot in 0..30 {
                    used[sources.iter().position(|s| *s == own[slot % own.len()]).unwrap()] += 1;
                }
            }
            assert!(used.iter().max().unwrap() - used.iter().min().unwrap() <= workers, "{n} {workers}: {used:?}");
        }
        assert!(Net::default().sources_of(0, 1).is_empty());
    }
}
