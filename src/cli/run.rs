//! `ringload run`: the main job, from flags to exit status.

use std::{path::PathBuf, sync::Arc};

use super::{
    dataset,
    flags::{FormatOut, OutputFlags, RecordsFlag, RunFlags},
    plan::{self, Placement, Sent},
    progress::Meter,
    terminal,
    url::Url,
};
use crate::{
    cache::{View, WhenFull, prompt_tokenizer::TokenCounter},
    data::{
        Error, Result,
        plan::{Plan, Shape, Target},
        results::{CacheState, DatasetFacts, RunResult},
        rows::Keep,
        units::{show_count, show_duration, show_size},
    },
    engine,
    report::{
        self, Asked, Merged, Percentile, RunDir, Summary, Threshold, Wanted, csv, records,
        responses::{self, Counted},
        slices::Sliced,
        spools::Spools,
        text, threshold,
    },
    sys::{clock, signal},
    target,
};

/// Runs, prints, and returns the exit status.
///
/// Errors: whatever keeps the run from beginning.
pub fn run(flags: &RunFlags) -> Result<u8> {
    check_output(&flags.output)?;
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
    let targets = if options.is_some() { Vec::new() } else { plan::targets(&urls, &flags.request)? };
    engine::check_tls(&flags.tls.plan(&targets)?, &targets)?;
    let source = Source::open(flags)?;
    let once = Once { flags, urls: &urls, options, placement, targets, source, judged };
    if flags.load.dry_run {
        let server = once.server()?;
        terminal::result(&dry_run(&once.plan(server.as_ref())?, &once.source))?;
        return Ok(0);
    }
    let folder = out_folder(flags)?;
    let repeats = flags.output.repeats;
    let mut summaries = Vec::new();
    let mut codes = Vec::new();
    for k in 1..=repeats {
        let dir = folder.as_ref().map(|f| if repeats > 1 { f.join(k.to_string()) } else { f.clone() });
        let mut dir = dir.map(|d| RunDir::prepare(&d)).transpose()?;
        let (summary, merged, kept) = once.run(dir.as_mut())?;
        if once.form() == FormatOut::Text {
            let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
            let gap = if k > 1 { "\n" } else { "" };
            terminal::result(&format!("{gap}{}", text::render(&summary, &merged.samples, colour)))?;
        }
        codes.push(code_of(&summary));
        // What was measured is told even when it cannot be kept.
        if let Err(error) = kept {
            terminal::say_error(&error);
            codes.push(error.exit_code());
        }
        let signalled = summary.signal.is_some();
        summaries.push(summary);
        if signalled {
            break;
        }
    }
    match once.form() {
        FormatOut::Text => {}
        FormatOut::Json => terminal::result(&match summaries.as_slice() {
            [summary] => summary.to_json(),
            several => json_array(several),
        })?,
        FormatOut::Csv => {
            let named: Vec<_> = summaries.iter().enumerate().map(|(k, s)| ((k + 1).to_string(), s)).collect();
            terminal::result(&csv::summaries(&named))?;
        }
    }
    if let Some(folder) = folder {
        terminal::say(&format!("run directory: {}", folder.display()));
    }
    // Of several statuses the first of this order is told.
    let order = [130, 143, 2, 3, 1, 99];
    Ok(order.into_iter().find(|code| codes.contains(code)).unwrap_or(0))
}

/// The exit status of one run; bodies that arrived wrong fail it, whatever else is said.
fn code_of(summary: &Summary) -> u8 {
    let wrong = summary.target.as_ref().is_some_and(|t| t.wrong > 0);
    if wrong {
        terminal::say("the target received bodies that differ from what was sent");
    }
    match report::exit_code(summary) {
        0 | 99 if wrong => 1,
        code => code,
    }
}

fn json_array(summaries: &[Summary]) -> String {
    let list: Vec<String> = summaries.iter().map(|s| s.to_json().trim_end().to_owned()).collect();
    format!("[\n{}\n]\n", list.join(",\n"))
}

/// All that repeats of a run have in common.
struct Once<'a> {
    flags: &'a RunFlags,
    urls: &'a [Url],
    options: Option<target::Options>,
    placement: Placement,
    targets: Vec<Target>,
    source: Source,
    judged: Judged,
}

impl Once<'_> {
    /// What goes to stdout at the end.
    fn form(&self) -> FormatOut {
        if self.flags.output.json { FormatOut::Json } else { self.flags.output.format_out }
    }

    /// Starts the built-in server, if the run has one.
    fn server(&self) -> Result<Option<Server>> {
        self.options.as_ref().map(|options| Server::start(options, &self.placement)).transpose()
    }

    fn plan(&self, server: Option<&Server>) -> Result<Plan> {
        let mut targets = self.targets.clone();
        if let (Some(server), Url::Builtin { path, .. }) = (server, &self.urls[0]) {
            let mut target = server.target(path)?;
            plan::override_parts(&mut target, &self.flags.request);
            targets.push(target);
        }
        let mut plan = plan::plan(self.flags, targets, self.source.sent(), &self.placement)?;
        plan.head.body_digest |= self.options.as_ref().is_some_and(|o| o.mode == target::Mode::Check);
        Ok(plan)
    }

    /// One run; the last part says whether it could be written to its directory.
    fn run(&self, dir: Option<&mut RunDir>) -> Result<(Summary, Merged, Result<()>)> {
        let server = self.server()?;
        let plan = self.plan(server.as_ref())?;
        let keeping = Keeping::new(&self.flags.output);
        let keep = dir.as_ref().and_then(|dir| keeping.keep(dir));
        let mut result = drive(self.flags, &plan, &self.source, keep.as_ref())?;
        result.target = server.map(|s| s.running.stop());
        let mut merged = report::merge(&result);
        merged.hide_secrets(&plan.head);
        let counted = match (&dir, &self.judged.counter) {
            (Some(dir), Some(counter)) => count_tokens(dir, counter, &plan, &result, &mut merged).map(Some),
            _ => Ok(None),
        };
        let asked = Asked {
            plan: &plan,
            dataset: &self.source.facts,
            percentiles: &self.judged.percentiles,
            thresholds: &self.judged.thresholds,
        };
        let mut summary = Summary::new(&asked, &result, &merged);
        let told = counted.map(|counted| summary.counted_tokens = counted);
        let Some(dir) = dir else { return Ok((summary, merged, told)) };
        let wanted = Wanted {
            records: keeping.records,
            responses: self.flags.output.keep_responses.is_some(),
            slices: self.flags.output.slice.map(|width_ns| Sliced {
                width_ns,
                percentiles: &self.judged.percentiles,
                aiperf: self.flags.output.aiperf_artifacts,
            }),
            aiperf: self.flags.output.aiperf_artifacts,
            inputs: self.flags.output.aiperf_inputs.then_some(&*self.source.view),
            head: &plan.head,
        };
        let kept = report::keep(dir, &wanted, &mut summary, &merged);
        Ok((summary, merged, told.and(kept)))
    }
}

/// Counts the tokens of kept responses.
fn count_tokens(
    dir: &RunDir,
    counter: &TokenCounter,
    plan: &Plan,
    result: &RunResult,
    merged: &mut Merged,
) -> Result<Counted> {
    let spools = Spools::find(dir.path())?;
    let count = |text: &str| counter.count(text).map_err(|e| Error::Failed(format!("--tokenize-after: {e}")));
    let counted = responses::count_tokens(&spools, merged, &plan.goodput, result.started_unix_ns, &count)?;
    Ok(Counted { by: counter.name(), ..counted })
}

/// What is kept of each request, by the flags of a run with a directory.
struct Keeping {
    records: Option<records::Format>,
    chunk_times: bool,
    responses: u64,
    others: bool,
}

impl Keeping {
    fn new(output: &OutputFlags) -> Self {
        Self {
            records: match output.records {
                Some(RecordsFlag::Off) => None,
                Some(RecordsFlag::Jsonl) => Some(records::Format::Jsonl),
                Some(RecordsFlag::Parquet) | None => Some(records::Format::Parquet),
            },
            chunk_times: output.chunk_times,
            responses: output.keep_responses.unwrap_or(if output.tokenize_after { u64::MAX } else { 0 }),
            others: output.slice.is_some() || output.aiperf_artifacts,
        }
    }

    /// What the engine is told; none where nothing needs rows.
    fn keep(&self, dir: &RunDir) -> Option<Keep> {
        let wanted = self.records.is_some() || self.responses > 0 || self.others;
        wanted.then(|| Keep {
            folder: dir.path().to_path_buf(),
            chunk_times: self.chunk_times,
            responses: self.responses,
        })
    }
}

/// Flags that say what goes into a run directory go with one.
///
/// Errors: those that would do nothing, by name.
fn check_output(output: &OutputFlags) -> Result<()> {
    let has_dir = output.out.is_some() || output.save;
    for (given, flag) in [
        (output.records.is_some_and(|r| r != RecordsFlag::Off), "--records"),
        (output.chunk_times, "--chunk-times"),
        (output.keep_responses.is_some(), "--keep-responses"),
        (output.tokenize_after, "--tokenize-after"),
        (output.slice.is_some(), "--slice"),
        (output.aiperf_artifacts, "--aiperf-artifacts"),
    ] {
        if given && !has_dir {
            return Err(Error::usage(format!("{flag} goes with -o DIR or --save")));
        }
    }
    let keeping = Keeping::new(output);
    if keeping.chunk_times && keeping.records.is_none() && !keeping.others {
        return Err(Error::usage("--chunk-times goes into the records, and --records is off"));
    }
    Ok(())
}

/// What the results are held against, parsed before anything is sent.
struct Judged {
    percentiles: Vec<Percentile>,
    thresholds: Vec<Threshold>,
    /// `--tokenize-after`.
    counter: Option<TokenCounter>,
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
        let tokenizer = flags.shaping.bodies.tokenizer.as_deref();
        let counter = output.tokenize_after.then(|| TokenCounter::open(tokenizer)).transpose()?;
        Ok(Self { percentiles, thresholds, counter })
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
        let source = Self { facts: dataset::facts(&opened), seen: opened.report.lines(), view: opened.view.clone() };
        if !flags.output.quiet {
            for line in &source.seen {
                terminal::say(line);
            }
            for line in opened.report.warnings() {
                terminal::say(&format!("warning: {line}"));
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

/// Where the run directory goes; none when nothing is kept.
fn out_folder(flags: &RunFlags) -> Result<Option<PathBuf>> {
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
        (None, false) => return Ok(None),
    };
    Ok(Some(path))
}

/// Drives the engine, with a progress line.
fn drive(flags: &RunFlags, plan: &Plan, source: &Source, keep: Option<&Keep>) -> Result<RunResult> {
    let quiet = flags.output.quiet || !terminal::stderr_is_terminal();
    let mut meter = (!quiet).then(|| Meter::new(plan, source.facts.records));
    let result = engine::run(plan.clone(), source.view.clone(), keep, &mut |progress| {
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
