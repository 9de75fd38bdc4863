//! What one core of this machine reached against the built-in target (`ringload calibrate`), and the share of it that a run had.
//!
//! Owns the table, its file's text and the interpolation. Pure: who reads and writes the file is `cli`. A share is told only for
//! runs of the kind that was calibrated, plain HTTP to this machine with small answers; of any other run it is not known.
//!
//! ```text
//! {"schema": "ringload/calibration/1", "machines": [{"cpu": .., "kernel": .., "version": .., "measured_at": .., "connections": ..,
//!   "cells": [{"core": 0, "body_bytes": 1024, "requests_per_s": .., "cpu_us_per_request": .., "busy": .., "limit": "client"}]}]}
//! ```

use serde::{Deserialize, Serialize};

use super::summary::{Summary, ratio};

/// Name and version of the file's schema.
pub const SCHEMA: &str = "ringload/calibration/1";
/// The target's answers are of about 120 bytes with their heads. Above this mean an answer costs the client more than it did there.
const ANSWER_BYTES_MAX: f64 = 1024.0;

/// Where and with what a calibration was made: another one of these needs its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the first core.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Version of this program.
    pub version: String,
}

/// What limited a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The worker had no time left: this is its ceiling.
    Client,
    /// The worker waited for the target: its ceiling is higher than this.
    Target,
}

/// One worker on one core with bodies of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The worker's core.
    pub core: u32,
    /// Bytes of each body; 0 is a GET.
    pub body_bytes: u64,
    /// What it reached.
    pub requests_per_s: f64,
    /// What the client's core cost.
    pub cpu_us_per_request: f64,
    /// Share of the time in which the worker had something to do.
    pub busy: f64,
    /// What limited it.
    pub limit: Limit,
}

/// The calibration of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Which.
    #[serde(flatten)]
    pub machine: Machine,
    /// RFC 3339, UTC.
    pub measured_at: String,
    /// Connections of each cell.
    pub connections: u64,
    /// By core, then by size.
    pub cells: Vec<Cell>,
}

/// The file: calibrations of any number of machines, as a home directory may be shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrations {
    /// [`SCHEMA`].
    pub schema: String,
    /// One a machine.
    pub machines: Vec<Calibration>,
}

impl Default for Calibrations {
    fn default() -> Self {
        Self { schema: SCHEMA.to_owned(), machines: Vec::new() }
    }
}

impl Calibrations {
    /// Reads the file's text.
    ///
    /// Errors: what is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if all.schema != SCHEMA {
            return Err(format!("schema is {:?}, expected {SCHEMA:?}", all.schema));
        }
        let good = |c: &Cell| c.requests_per_s.is_finite() && c.requests_per_s > 0.0;
        match all.machines.iter().flat_map(|m| &m.cells).find(|c| !good(c)) {
            None => Ok(all),
            Some(cell) => Err(format!("requests_per_s is {}, expected a number over 0", cell.requests_per_s)),
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The calibration of a machine.
    pub fn of(&self, machine: &Machine) -> Option<&Calibration> {
        self.machines.iter().find(|c| c.machine == *machine)
    }

    /// Puts in a calibration, in place of the one that its machine had.
    pub fn put(&mut self, calibration: Calibration) {
        self.machines.retain(|c| c.machine != calibration.machine);
        self.machines.push(calibration);
    }
}

/// A ceiling of one core at one body size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ceiling {
    requests_per_s: f64,
    /// False when the target was the limit in a cell that it is made from: then it is a lower bound.
    exact: bool,
}

impl Calibration {
    /// The ceiling of one core for bodies of this mean size, between two measured sizes by the time a request: that is a constant
    /// and a part for each byte, so a line fits it where none fits the rate. None above the largest size that was measured.
    fn at(&self, core: u32, body_bytes: f64) -> Option<Ceiling> {
        let mut sizes: Vec<&Cell> = self.cells.iter().filter(|c| c.core == core).collect();
        sizes.sort_by_key(|c| c.body_bytes);
        let above = sizes.iter().position(|c| body_bytes <= c.body_bytes as f64)?;
        let high = sizes[above];
        let low = sizes[above.saturating_sub(1)];
        let width = high.body_bytes.saturating_sub(low.body_bytes) as f64;
        // Below the smallest size that was measured: that one.
        let part = if width > 0.0 { (body_bytes - low.body_bytes as f64) / width } else { 1.0 };
        let time_s = (1.0 - part) / low.requests_per_s + part / high.requests_per_s;
        let exact = [low, high].iter().all(|c| c.limit == Limit::Client);
        Some(Ceiling { requests_per_s: 1.0 / time_s, exact })
    }

    /// The ceilings of all these cores together; where one of them was not calibrated, the mean core stands for each.
    fn of_cores(&self, cores: &[u32], workers: u64, body_bytes: f64) -> Option<Ceiling> {
        let own: Option<Vec<Ceiling>> = cores.iter().map(|&core| self.at(core, body_bytes)).collect();
        let sum = |found: &[Ceiling]| found.iter().map(|c| c.requests_per_s).sum::<f64>();
        let exact = |found: &[Ceiling]| found.iter().all(|c| c.exact);
        match own {
            Some(own) if own.len() as u64 == workers => Some(Ceiling { requests_per_s: sum(&own), exact: exact(&own) }),
            _ => {
                let mut known: Vec<u32> = self.cells.iter().map(|c| c.core).collect();
                known.dedup();
                let all: Vec<Ceiling> = known.iter().filter_map(|&core| self.at(core, body_bytes)).collect();
                let mean = ratio(sum(&all), all.len() as f64)?;
                Some(Ceiling { requests_per_s: mean * workers as f64, exact: exact(&all) })
            }
        }
    }
}

/// What of a run's plan decides whether a calibration says anything about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Every target is on this machine and reached over TCP without TLS.
    pub plain_and_local: bool,
    /// Connections are kept.
    pub keeps_connections: bool,
}

/// Fills in `client.share_of_ceiling` and what it is made from. Without a calibration both stay null, and so they do for a run of
/// another kind, which `client.ceiling_note` then says.
pub fn judge(summary: &mut Summary, kind: Kind, known: Option<&Calibration>) {
    let client = &mut summary.client;
    (client.share_of_ceiling, client.ceiling_rps) = (None, None);
    let Some(calibration) = known else {
        client.ceiling_note = "this machine was not calibrated with this version: ringload calibrate".into();
        return;
    };
    let ended = summary.requests.succeeded + summary.requests.failed;
    let streams = summary.metrics.get("inter_chunk_latency").is_some_and(|s| s.count > 0);
    let sent = ratio(summary.bytes.bodies as f64, summary.requests.issued as f64);
    let answer = ratio(summary.bytes.received as f64, ended as f64);
    let other = if !kind.plain_and_local {
        Some("TLS, a unix socket or another machine")
    } else if !kind.keeps_connections {
        Some("a connection a request")
    } else if streams || answer.is_some_and(|bytes| bytes > ANSWER_BYTES_MAX) {
        Some("streams, or answers of over 1 KiB")
    } else if 20 * summary.requests.failed > ended {
        Some("more than one failure in twenty")
    } else {
        None
    };
    if let Some(other) = other {
        client.ceiling_note =
            format!("not known for {other}: calibrated is plain HTTP to this machine, small answers, kept connections");
        return;
    }
    let Some(body_bytes) = sent else {
        client.ceiling_note = "nothing was issued".into();
        return;
    };
    let workers = summary.plan.workers;
    let Some(ceiling) = calibration.of_cores(&client.cores, workers, body_bytes) else {
        client.ceiling_note =
            format!("bodies of {body_bytes:.0} bytes are larger than any that was calibrated (--sizes)");
        return;
    };
    client.ceiling_rps = Some(ceiling.requests_per_s);
    client.share_of_ceiling = ratio(summary.rate.succeeded_rps.unwrap_or(0.0), ceiling.requests_per_s);
    let bound = if ceiling.exact { "" } else { "; at least, as the target was the limit there" };
    client.ceiling_note = format!(
        "succeeded a second, over what the workers' cores reached with bodies of {body_bytes:.0} bytes and {} connections each, \
         between measured sizes by the time a request; measured {}{bound}",
        calibration.connections, calibration.measured_at
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn cell(core: u32, body_bytes: u64, requests_per_s: f64) -> Cell {
        Cell { core, body_bytes, requests_per_s, cpu_us_per_request: 1.0, busy: 1.0, limit: Limit::Client }
    }

    fn calibration(cells: Vec<Cell>) -> Calibration {
        let machine = Machine { cpu: "a".into(), kernel: "6.18".into(), version: "1".into() };
        Calibration { machine, measured_at: "2026-01-01T00:00:00Z".into(), connections: 64, cells }
    }

    const PLAIN: Kind = Kind { plain_and_local: true, keeps_connections: true };

    #[test]
    fn between_sizes_the_time_a_request_is_on_a_line() {
        let c = calibration(vec![cell(0, 1000, 50_000.0), cell(0, 0, 100_000.0), cell(0, 3000, 10_000.0)]);
        let at = |bytes| c.at(0, bytes).map(|c| c.requests_per_s.round());
        assert_eq!((at(0.0), at(1000.0), at(3000.0)), (Some(100_000.0), Some(50_000.0), Some(10_000.0)));
        // 10 us and 20 us: 15 us in the middle; 20 us and 100 us: 60 us.
        assert_eq!((at(500.0), at(2000.0)), (Some(66_667.0), Some(16_667.0)));
        assert_eq!(at(3001.0), None, "nothing is known above the largest");
        assert_eq!(c.at(1, 0.0), None);
        let smallest = calibration(vec![cell(0, 1000, 50_000.0)]);
        assert_eq!(smallest.at(0, 10.0).unwrap().requests_per_s.round(), 50_000.0);
    }

    #[test]
    fn cores_add_up_and_the_mean_stands_for_one_that_was_not_calibrated() {
        let mut c = calibration(vec![cell(0, 0, 100.0), cell(1, 0, 300.0)]);
        assert_eq!(c.of_cores(&[0, 1], 2, 0.0).unwrap().requests_per_s, 400.0);
        assert_eq!(c.of_cores(&[1], 1, 0.0).unwrap().requests_per_s, 300.0);
        assert_eq!(c.of_cores(&[5], 1, 0.0).unwrap().requests_per_s, 200.0);
        assert_eq!(c.of_cores(&[], 2, 0.0).unwrap().requests_per_s, 400.0, "unpinned workers");
        c.cells[0].limit = Limit::Target;
        assert!(!c.of_cores(&[0], 1, 0.0).unwrap().exact && c.of_cores(&[1], 1, 0.0).unwrap().exact);
    }

    #[test]
    fn a_share_is_told_only_of_runs_of_the_calibrated_kind() {
        let c = calibration(vec![cell(0, 0, 1_000.0), cell(0, 1 << 20, 500.0)]);
        let (mut s, _) = fixture::summarize(&fixture::plan(), &fixture::result());
        (s.requests.failed, s.bytes.received, s.bytes.bodies) = (0, 100 * s.requests.succeeded, 0);
        judge(&mut s, PLAIN, Some(&c));
        let rps = s.rate.succeeded_rps.unwrap();
        assert_eq!(
            s.client.share_of_ceiling,
            Some(rps / (1_000.0 * s.plan.workers as f64)),
            "{}",
            s.client.ceiling_note
        );
        for (kind, received, failed, bodies) in [
            (Kind { plain_and_local: false, ..PLAIN }, 0, 0, 0),
            (Kind { keeps_connections: false, ..PLAIN }, 0, 0, 0),
            (PLAIN, 1 << 30, 0, 0),
            (PLAIN, 0, 1_000_000, 0),
            (PLAIN, 0, 0, 1 << 40),
        ] {
            let mut other = s.clone();
            (other.bytes.received, other.requests.failed, other.bytes.bodies) = (received, failed, bodies);
            judge(&mut other, kind, Some(&c));
            assert_eq!((other.client.share_of_ceiling, other.client.ceiling_rps), (None, None), "{kind:?}");
            assert!(!other.client.ceiling_note.is_empty());
        }
        judge(&mut s, PLAIN, None);
        assert!(s.client.share_of_ceiling.is_none() && s.client.ceiling_note.contains("ringload calibrate"));
    }

    #[test]
    fn files_keep_one_calibration_a_machine_and_refuse_what_they_do_not_know() {
        let mut all = Calibrations::default();
        let first = calibration(vec![cell(0, 0, 1.0)]);
        let other =
            Calibration { machine: Machine { kernel: "5.19".into(), ..first.machine.clone() }, ..first.clone() };
        for c in [&first, &other] {
            all.put(c.clone());
        }
        all.put(calibration(vec![cell(0, 0, 2.0)]));
        let read = Calibrations::parse(&all.to_json()).unwrap();
        assert_eq!((read.machines.len(), read.of(&first.machine).unwrap().cells[0].requests_per_s), (2, 2.0));
        assert!(read.of(&Machine { cpu: "b".into(), ..first.machine }).is_none());
        for wrong in [
            "",
            "{",
            "[]",
            "{\"schema\":\"ringload/calibration/2\",\"machines\":[]}",
            &all.to_json().replace("2.0", "0.0"),
        ] {
            assert!(Calibrations::parse(wrong).is_err(), "{wrong}");
        }
    }
}
