//! `ringload target`: the reference server, by itself.

use std::{thread, time::Duration};

use super::{flags::TargetFlags, terminal};
use crate::{
    data::{Result, results::TargetCounts, units},
    sys::{clock::Clock, cpu, limit, signal},
    target,
};

/// Serves until a signal, or for as long as was asked; prints the counts at the end.
///
/// Errors: an option or an address that cannot be.
pub fn target(flags: &TargetFlags) -> Result<u8> {
    let mut query = flags.options.join("&");
    if let Some(threads) = flags.threads {
        query.push_str(&format!("&threads={threads}"));
    }
    let options = target::Options::parse(query.trim_start_matches(['?', '&']))?;
    let listen = target::Listen::parse(&flags.listen)?;
    // As many connections as the hard limit lets in; fewer are no error before they come.
    let (_, hard) = limit::open_files();
    let _ = limit::ensure_files(hard.saturating_sub(crate::data::limits::FILES_RESERVED));
    let cores = match &flags.cores {
        None => vec![None],
        Some(list) => cpu::parse_list(list)?.into_iter().map(Some).collect(),
    };
    let running = target::start(listen, &options, &cores)?;
    let _hold = signal::hold();
    terminal::say(&format!("listening on {}", running.addr()));
    let clock = Clock::start();
    while signal::asked().is_none() && flags.duration.is_none_or(|d| clock.now().0 < d) {
        thread::sleep(Duration::from_millis(20));
    }
    let counts = running.stop();
    let text = if flags.json { in_json(&counts) } else { in_words(&counts) };
    terminal::result(&text)?;
    Ok(0)
}

fn in_json(counts: &TargetCounts) -> String {
    let value = serde_json::json!({
        "requests": counts.requests,
        "body_bytes": counts.body_bytes,
        "verified": counts.verified,
        "wrong": counts.wrong,
        "connections": counts.connections,
        "answers": counts.answers,
        "events": counts.events,
        "bad_requests": counts.bad_requests,
        "aborted": counts.aborted,
        "errors_injected": counts.errors_injected,
        "resets_injected": counts.resets_injected,
        "truncations_injected": counts.truncations_injected,
        "stream_errors_injected": counts.stream_errors_injected,
        "stalled": counts.stalled,
        "closed": counts.closed,
        "cpu_ns": counts.cpu_ns,
    });
    format!("{value}\n")
}

fn in_words(counts: &TargetCounts) -> String {
    let per_request = counts.cpu_ns as f64 / 1e3 / counts.requests.max(1) as f64;
    format!(
        "{} requests over {} connections, {} of bodies, {} verified, {} wrong, {per_request:.2} us of CPU a request\n",
        units::show_count(counts.requests),
        units::show_count(counts.connections),
        units::show_size(counts.body_bytes),
        units::show_count(counts.verified),
        units::show_count(counts.wrong),
    )
}
