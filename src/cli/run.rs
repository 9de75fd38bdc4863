//! `ringload run`: the main job, from flags to exit status.

use std::{path::PathBuf, sync::Arc};

use super::{
    dataset,
    flags::{FormatOut, RecordsFlag, RunFlags},
    plan::{self, Placement, Sent},
    progress::Meter,
    terminal,
    url::Url,
};
use crate::{
    cache::{View, WhenFull},
    data::{
        Error, Result,
        plan::{Plan, Shape, Target},
        results::{CacheState, DatasetFacts, RunResult},
        units::{show_count, show_duration, show_size},
    },
    engine,
    report::{self, Asked, Percentile, RunDir, Threshold, text, threshold},
    sys::{clock, signal},
    target,
};

/// Runs, prints, and returns the exit status.
///
/// Errors: whatever keeps the run from beginning.
pub fn run(flags: &RunFlags) -> Result<u8> {
    let urls = plan::urls(flags)?;
    let judged = Judged::new(flags)?;
    let options = match &urls[0] {
        Url::Builtin { options, .. } => Some(target::Options::parse(options)?),
        _ => None,
    };
    let placement = plan::place(&flags.load, options.as_ref().map(|o| o.threads.map_or(0, |n| n as usize)))?;
    for warning in &placement.warnings {
        terminal::say(&format!("warning: {warning}"));
    }
    // Hosts are looked up before the dataset is read: a wrong URL is told at once.
    let mut targets = if options.is_some() { Vec::new() } else { plan::targets(&urls, &flags.request)? };
    let source = Source::open(flags)?;
    let server = match (&options, &urls[0]) {
        (Some(options), Url::Builtin { path, .. }) => {
            let server = Server::start(options, &placement)?;
            let mut target = server.target(path)?;
            plan::override_parts(&mut target, &flags.request);
            targets.push(target);
            Some(server)
        }
        _ => None,
    };
    let mut plan = plan::plan(flags, targets, source.sent(), &placement)?;
    plan.head.body_digest |= options.as_ref().is_some_and(|o| o.mode == target::Mode::Check);
    if flags.load.dry_run {
        terminal::result(&dry_run(&plan, &source))?;
        return Ok(0);
    }
    let mut dir = out_dir(flags)?;
    let records = match flags.output.records {
        Some(RecordsFlag::Off) => None,
        Some(RecordsFlag::Jsonl) => Some(report::records::Format::Jsonl),
        Some(RecordsFlag::Parquet) | None => dir.as_ref().map(|_| report::records::Format::Parquet),
    };
    let rows = dir.as_ref().filter(|_| records.is_some()).map(|d| d.path().to_path_buf());
    let mut result = drive(flags, &plan, &source, rows.as_deref())?;
    result.target = server.map(|s| s.running.stop());
    let asked =
        Asked { plan: &plan, dataset: &source.facts, percentiles: &judged.percentiles, thresholds: &judged.thresholds };
    let (summary, merged) = report::finish(&asked, &result);
    if let Some(dir) = &mut dir {
        if let Some(format) = records {
            let spools = report::records::spools(dir)?;
            report::records::write(dir, format, &spools)?;
            report::records::remove_spools(&spools)?;
        }
        dir.write_run(&summary, &merged)?;
    }
    let json = flags.output.json || flags.output.format_out == FormatOut::Json;
    let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
    let shown = if json { summary.to_json() } else { text::render(&summary, &merged.samples, colour) };
    terminal::result(&shown)?;
    if let Some(dir) = &dir {
        terminal::say(&format!("run directory: {}", dir.path().display()));
    }
    if summary.target.as_ref().is_some_and(|t| t.wrong > 0) {
        return Err(Error::Failed("the target received bodies that differ from what was sent".into()));
    }
    Ok(report::exit_code(&summary))
}

/// What the results are held against, parsed before anything is sent.
struct Judged {
    percentiles: Vec<Percentile>,
    thresholds: Vec<Threshold>,
}

impl Judged {
    fn new(flags: &RunFlags) -> Result<Self> {
        let output = &flags.output;
        let percentiles = match &output.percentiles {
            None => Percentile::DEFAULT.to_vec(),
            Some(list) => Percentile::parse_list(list).map_err(|e| Error::usage(format!("--percentiles: {e}")))?,
        };
        let goodput = plan::goodput(flags)?;
        let thresholds =
            threshold::parse_all(output.fail_if.iter().map(String::as_str), &goodput).map_err(Error::usage)?;
        Ok(Self { percentiles, thresholds })
    }
}

/// What is sent: a dataset, or one body (none for plain GETs).
struct Source {
    view: Arc<View>,
    facts: DatasetFacts,
    /// What the build saw in the bodies, one sentence a line; empty without a dataset.
    seen: Vec<String>,
}

impl Source {
    fn open(flags: &RunFlags) -> Result<Self> {
        signal::watch()?;
        let Some(path) = &flags.source.dataset else {
            let body = plan::inline_body(flags.source.body.as_deref(), flags.source.body_file.as_deref())?;
            let view = Arc::new(View::inline(body.as_deref().unwrap_or_default())?);
            let facts = DatasetFacts {
                format: if body.is_some() { "inline".into() } else { String::new() },
                records: 1,
                cache: CacheState::Off,
                body_bytes: view.body_bytes_total(),
                stored_bytes: view.stored_bytes(),
                ..DatasetFacts::default()
            };
            return Ok(Self { view, facts, seen: Vec::new() });
        };
        let request =
            dataset::request(path, &flags.shaping, &flags.cache, flags.source.seed, WhenFull::BuildPrivately)?;
        let opened = dataset::open(&request, None, flags.output.quiet)?;
        if flags.load.schedule
            && let Some((_, line)) = opened.report.first_undated
        {
            return Err(Error::usage(format!(
                "{}:{line}: timestamp is missing, but --schedule needs one for each first turn",
                path.display()
            )));
        }
        let source = Self { facts: dataset::facts(&opened), seen: opened.report.lines(), view: opened.view };
        if !flags.output.quiet {
            for line in &source.seen {
                terminal::say(line);
            }
        }
        Ok(source)
    }

    fn sent(&self) -> Sent {
        if self.facts.format.is_empty() || self.facts.format == "inline" { Sent::Inline } else { Sent::Dataset }
    }
}

/// The built-in server of a run.
struct Server {
    running: target::Running,
}

impl Server {
    fn start(options: &target::Options, placement: &Placement) -> Result<Self> {
        let listen = target::Listen::Tcp(([127, 0, 0, 1], 0).into());
        Ok(Self { running: target::start(listen, options, &placement.server)? })
    }

    fn target(&self, path: &str) -> Result<Target> {
        match self.running.addr() {
            target::Listen::Tcp(address) => Ok(plan::builtin_target(path, *address)),
            target::Listen::Unix(_) => Err(Error::usage("builtin: listens on TCP alone")),
        }
    }
}

/// The run directory, made before anything is sent.
fn out_dir(flags: &RunFlags) -> Result<Option<RunDir>> {
    let path = match (&flags.output.out, flags.output.save) {
        (Some(path), _) => path.clone(),
        (None, true) => {
            let now = clock::unix_ns();
            PathBuf::from("runs").join(format!(
                "{}-{:04x}",
                now / 1_000_000_000,
                (now / 1_000) as u16 ^ std::process::id() as u16
            ))
        }
        (None, false) if flags.output.records.is_some_and(|r| r != RecordsFlag::Off) => {
            return Err(Error::usage("--records goes with -o DIR or --save"));
        }
        (None, false) => return Ok(None),
    };
    RunDir::prepare(&path).map(Some)
}

/// Drives the engine, with a progress line.
fn drive(flags: &RunFlags, plan: &Plan, source: &Source, rows: Option<&std::path::Path>) -> Result<RunResult> {
    let quiet = flags.output.quiet || !terminal::stderr_is_terminal();
    let mut meter = (!quiet).then(|| Meter::new(plan, source.facts.records));
    let result = engine::run(plan.clone(), source.view.clone(), rows, &mut |progress| {
        if let Some(meter) = &mut meter {
            meter.observe(progress);
        }
    });
    if let Some(meter) = meter {
        meter.end();
    }
    result
}

/// The plan in words, for `--dry-run`.
fn dry_run(plan: &Plan, source: &Source) -> String {
    let mut lines = vec!["nothing is sent: this is the plan".to_owned()];
    for target in &plan.targets {
        lines.push(format!(
            "target       {} ({} addresses, {})",
            target.url,
            target.addresses.len(),
            if target.local { "local" } else { "remote" }
        ));
    }
    let facts = &source.facts;
    lines.push(format!(
        "bodies       {} records of {}, {} in all, {} stored, cache {}",
        show_count(facts.records),
        if facts.format.is_empty() { "no body" } else { &facts.format },
        show_size(facts.body_bytes),
        show_size(facts.stored_bytes),
        facts.cache.name()
    ));
    lines.extend(source.seen.iter().map(|line| format!("             {line}")));
    lines.push(format!("shape        {}", shape_in_words(&plan.shape)));
    let end = |n: Option<String>, what: &str| n.map_or(String::new(), |n| format!("{n} {what}; "));
    lines.push(format!(
        "end          {}{}{}then a drain of {} at most",
        end(plan.stop.requests.map(show_count), "requests"),
        end(plan.stop.duration_ns.map(show_duration), ""),
        end(plan.stop.passes.map(show_count), "passes"),
        show_duration(plan.stop.drain_ns)
    ));
    for (w, core) in plan.cores.iter().enumerate() {
        let share = |n: u64| Plan::share(n, w, plan.workers());
        lines.push(format!(
            "worker {w:<5} core {}, {} connections{}",
            core.map_or("any".to_owned(), |c| c.to_string()),
            show_count(share(u64::from(plan.connections.min(plan.concurrency)))),
            plan.stop.requests.map_or(String::new(), |n| format!(", {} requests", show_count(share(n)))),
        ));
    }
    lines.push(format!("seed         {}", plan.seed));
    lines.push(String::new());
    lines.join("\n")
}

fn shape_in_words(shape: &Shape) -> String {
    match shape {
        Shape::Closed => "closed loop".into(),
        Shape::Rate { arrival, curve } => {
            let stages: Vec<String> = curve
                .iter()
                .map(|s| format!("{}/s to {}/s in {}", s.from, s.to, show_duration(s.duration_ns)))
                .collect();
            format!("open loop, {arrival:?} arrivals, {}", stages.join(", "))
        }
        Shape::Schedule { speedup, .. } => format!("the dataset's own times, {speedup} times as fast"),
    }
}
