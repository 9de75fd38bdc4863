//! What the client cost, and whether it may have been the limit: the client tells on itself.

use serde::{Deserialize, Serialize};

use crate::data::{
    metric::Metric,
    results::Cost,
    units::{MILLISECOND, SECOND, show_count, show_duration},
};

use super::{
    merge::{Merged, WorkerFigures},
    percentile::{Percentile, shown_at, value_at},
    summary::{Summary, ratio},
};

/// A worker that is busier than this had no room left: what it measures contains its own queue.
pub const BUSY_MAX: f64 = 0.95;
/// Starts later than this (p99) are no scheduler noise any more.
pub const LAG_MAX_NS: u64 = MILLISECOND;
/// Nor are those later than this share of the median latency.
pub const LAG_SHARE_MAX: f64 = 0.01;

/// More bodies than this share that waited for the client's own disk: what was measured is that disk, too.
pub const COLD_SHARE_MAX: f64 = 0.01;

/// `client` of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Cores that workers were pinned to, in worker order; empty without pinning.
    pub cores: Vec<u32>,
    /// User and system CPU of the workers over issued requests; null when nothing was issued.
    pub cpu_us_per_request: Option<f64>,
    /// Share of the time in which the workers had something to do; null when the run had no length.
    pub busy: Option<f64>,
    /// The same of the busiest worker.
    pub busy_max: Option<f64>,
    /// What `busy` is made from: `idle` (1 - idle time over wall time) or `cpu` (CPU time over wall time, where no idle time
    /// was counted).
    pub busy_from: String,
    /// 99th percentile of start - due, microseconds.
    pub send_lag_p99_us: Option<f64>,
    /// True when the client may have been the limit.
    pub limited_by_client: bool,
    /// Why, in words; empty when it was not.
    pub limits: Vec<String>,
    /// Succeeded a second over `ceiling_rps`; null where that is not known.
    #[serde(default)]
    pub share_of_ceiling: Option<f64>,
    /// What the workers' cores reach with such bodies by `ringload calibrate`, requests a second.
    #[serde(default)]
    pub ceiling_rps: Option<f64>,
    /// How that was found, or why it is not known.
    #[serde(default)]
    pub ceiling_note: String,
    /// The counters of all workers together.
    #[serde(flatten)]
    pub totals: Counters,
    /// One a worker.
    pub workers: Vec<Worker>,
}

/// Counters of a worker or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// User CPU, seconds.
    pub cpu_user_s: f64,
    /// System CPU, seconds.
    pub cpu_system_s: f64,
    /// Longest time between two looks at the completions, microseconds.
    pub longest_batch_us: f64,
    /// Turns of the loop.
    pub turns: u64,
    /// Completions read.
    pub completions: u64,
    /// Times the submission queue was full.
    pub sq_full: u64,
    /// Completion queue overflows.
    pub cq_overflow: u64,
    /// Times the receive buffers ran out.
    pub buffers_out: u64,
    /// Completions of a slot's earlier use.
    pub stale_completions: u64,
    /// Requests whose body had to be read from the disk before it could be sent.
    pub cold_slices: u64,
    /// Times that a worker stood still until a page was read from the disk.
    #[serde(default)]
    pub major_faults: u64,
    /// Voluntary context switches.
    pub switches_voluntary: u64,
    /// Involuntary context switches.
    pub switches_involuntary: u64,
    /// Streams with a content encoding, which could not be looked into.
    pub encoded_streams: u64,
}

/// One worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Which, from 0.
    pub worker: u16,
    /// The core it was pinned to.
    pub core: Option<u32>,
    /// Requests that it issued.
    pub issued: u64,
    /// CPU over issued requests.
    pub cpu_us_per_request: Option<f64>,
    /// Share of the time in which it had something to do.
    pub busy: Option<f64>,
    /// Median of start - due, microseconds.
    pub lag_p50_us: Option<f64>,
    /// 99th percentile.
    pub lag_p99_us: Option<f64>,
    /// Maximum.
    pub lag_max_us: Option<f64>,
    /// From the start to its end, seconds.
    pub wall_s: f64,
    /// Its counters.
    #[serde(flatten)]
    pub counters: Counters,
}

fn counters(cost: &Cost) -> Counters {
    let seconds = |ns: u64| ns as f64 / SECOND as f64;
    Counters {
        cpu_user_s: seconds(cost.cpu_user_ns),
        cpu_system_s: seconds(cost.cpu_system_ns),
        longest_batch_us: cost.longest_batch_ns as f64 / 1e3,
        turns: cost.turns,
        completions: cost.completions,
        sq_full: cost.sq_full,
        cq_overflow: cost.cq_overflow,
        buffers_out: cost.buffers_out,
        stale_completions: cost.stale_completions,
        cold_slices: cost.cold_slices,
        major_faults: cost.major_faults,
        switches_voluntary: cost.switches_voluntary,
        switches_involuntary: cost.switches_involuntary,
        encoded_streams: cost.encoded_streams,
    }
}

fn sum(costs: impl Iterator<Item = Cost>) -> Cost {
    costs.fold(Cost::default(), |mut all, c| {
        all.cpu_user_ns += c.cpu_user_ns;
        all.cpu_system_ns += c.cpu_system_ns;
        all.wall_ns += c.wall_ns;
        all.idle_ns += c.idle_ns;
        all.longest_batch_ns = all.longest_batch_ns.max(c.longest_batch_ns);
        all.turns += c.turns;
        all.completions += c.completions;
        all.sq_full += c.sq_full;
        all.cq_overflow += c.cq_overflow;
        all.buffers_out += c.buffers_out;
        all.stale_completions += c.stale_completions;
        all.cold_slices += c.cold_slices;
        all.major_faults += c.major_faults;
        all.switches_voluntary += c.switches_voluntary;
        all.switches_involuntary += c.switches_involuntary;
        all.encoded_streams += c.encoded_streams;
        all
    })
}

/// Share of the wall time with something to do, 0 to 1. A worker that never counted idle time is judged by its CPU time.
fn busy(cost: &Cost) -> Option<f64> {
    let used = match cost.idle_ns {
        0 => cost.cpu_user_ns + cost.cpu_system_ns,
        idle => cost.wall_ns.saturating_sub(idle),
    };
    ratio(used as f64, cost.wall_ns as f64).map(|b| b.clamp(0.0, 1.0))
}

fn cpu_us_per_request(cost: &Cost, issued: u64) -> Option<f64> {
    ratio((cost.cpu_user_ns + cost.cpu_system_ns) as f64 / 1e3, issued as f64)
}

/// The client's figures; [`judge`] says later whether it was the limit.
pub(super) fn figures(merged: &Merged) -> Client {
    let all = sum(merged.workers.iter().map(|w| w.cost));
    Client {
        cores: merged.workers.iter().filter_map(|w| w.core).collect(),
        cpu_us_per_request: cpu_us_per_request(&all, merged.buckets.issued),
        busy: busy(&all),
        busy_max: merged.workers.iter().filter_map(|w| busy(&w.cost)).max_by(f64::total_cmp),
        busy_from: if all.idle_ns > 0 { "idle" } else { "cpu" }.to_owned(),
        send_lag_p99_us: shown_at(merged.series(Metric::ScheduleLag), Metric::ScheduleLag, Percentile::P99),
        limited_by_client: false,
        limits: Vec::new(),
        share_of_ceiling: None,
        ceiling_rps: None,
        ceiling_note: String::new(),
        totals: counters(&all),
        workers: merged.workers.iter().map(worker).collect(),
    }
}

fn worker(w: &WorkerFigures) -> Worker {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    Worker {
        worker: w.worker,
        core: w.core,
        issued: w.issued,
        cpu_us_per_request: cpu_us_per_request(&w.cost, w.issued),
        busy: busy(&w.cost),
        lag_p50_us: us(w.lag_p50_ns),
        lag_p99_us: us(w.lag_p99_ns),
        lag_max_us: us(w.lag_max_ns),
        wall_s: w.cost.wall_ns as f64 / SECOND as f64,
        counters: counters(&w.cost),
    }
}

/// Says whether the client may have been the limit, and why.
///
/// It may when a worker was busy for more than 95 % of the window, or, in an open loop, when the p99 of start - due is over
/// 1 ms and over 1 % of the median latency, or due requests were dropped though not all slots were ever in use; or when over 1 %
/// of the bodies came from the disk.
pub(super) fn judge(summary: &mut Summary, merged: &Merged) {
    let mut limits = Vec::new();
    if let Some(busy) = summary.client.busy_max.filter(|&b| b > BUSY_MAX) {
        limits.push(format!("a worker was busy {:.0} % of the time", 100.0 * busy));
    }
    if summary.plan.is_open_loop()
        && let Some(lag) = value_at(merged.series(Metric::ScheduleLag), Percentile::P99)
    {
        let latency = value_at(merged.series(Metric::RequestLatency), Percentile::P50).unwrap_or(0);
        if lag > LAG_MAX_NS && lag as f64 > LAG_SHARE_MAX * latency as f64 {
            limits.push(format!("1 % of the requests started {} or more after they were due", show_duration(lag)));
        }
    }
    if let Some(missed) = missed_with_free_slots(summary) {
        limits.push(format!("{} due requests were dropped as missed while slots were free", show_count(missed)));
    }
    let (cold, issued) = (summary.client.totals.cold_slices, summary.requests.issued);
    if cold as f64 > COLD_SHARE_MAX * issued as f64 {
        limits.push(format!(
            "{} of {} bodies had to be read from the disk first",
            show_count(cold),
            show_count(issued)
        ));
    }
    summary.client.limited_by_client = !limits.is_empty();
    summary.client.limits = limits;
}

/// Due requests that were dropped though not all slots were ever in use: then it was not for want of one. None where connections
/// failed, as a slot that waits for one is taken, too.
fn missed_with_free_slots(summary: &Summary) -> Option<u64> {
    let slots = summary.plan.concurrency.min(summary.plan.connections);
    let never_full = summary.connections.established_peak < slots && summary.connections.failed == 0;
    (summary.plan.is_open_loop() && never_full && summary.requests.missed > 0).then_some(summary.requests.missed)
}

/// Highest mean number of requests in flight over a slice of the timeline; only whole slices, unless there is none.
pub(super) fn fullest_slice(merged: &Merged, duration_ns: u64) -> Option<f64> {
    let width = merged.timeline.width_ns;
    let whole = (duration_ns / width) as usize;
    let rows = merged.timeline.rows();
    let length = if whole == 0 { duration_ns } else { width };
    let fullest = rows.iter().take(whole.max(1)).map(|row| row.in_flight_ns).max()?;
    ratio(fullest as f64, length as f64).filter(|&n| n > 0.0)
}
