//! `ringload run`: the main job, from flags to exit status.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    calibrate, dataset,
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
        self, Asked, Merged, Percentile, RunDir, Summary, Threshold, Wanted,
        ceiling::{self, Calibration},
        csv, records,
        responses::{self, Counted},
        slices::Sliced,
        spools::Spools,
        text, threshold,
    },
    sys::{clock, signal, sock},
    target,
};

/// The flags of one phase of a run.
#[derive(Debug)]
pub struct PhaseFlags {
    /// Its name.
    pub name: String,
    /// It begins when the one before has issued everything, and not only when that is drained.
    pub seamless: bool,
    /// All flags, those of the run included.
    pub flags: Box<RunFlags>,
}

/// Runs, prints, and returns the exit status. Without phases the run is one of `flags`.
///
/// Errors: whatever keeps the run from beginning.
pub fn run(flags: &RunFlags, phases: &[PhaseFlags]) -> Result<u8> {
    check_output(&flags.output)?;
    let urls = plan::urls(flags)?;
    let judged = Judged::new(flags)?;
    if flags.output.json && flags.output.format_out == Some(FormatOut::Text) {
        return Err(Error::usage("--json: contradicts --format-out text; leave one of them out"));
    }
    if !phases.is_empty() && flags.output.repeats > 1 {
        return Err(Error::usage("--repeats: a run of several phases is played once; leave it out"));
    }
    let options = match &urls[0] {
        Url::Builtin { options, .. } => Some(target::Options::parse(options)?),
        _ => None,
    };
    let placement = plan::place(&flags.load, options.as_ref().map(|o| o.threads.map_or(0, |n| n as usize)))?;
    for warning in &placement.warnings {
        terminal::say(&format!("warning: {warning}"));
    }
    // Hosts are looked up before the dataset is read: a wrong URL is told at once.
    let targets = if options.is_some() { Vec::new() } else { plan::targets(&urls, flags)? };
    engine::check_tls(&flags.tls.plan(&targets)?, &targets)?;
    if let Some(note) = flags.tls.note() {
        terminal::say(&format!("note: {note}"));
    }
    let net = plan::net(flags, &mut targets.clone())?;
    for note in sock::check(&net.sources, &net.options)? {
        terminal::say(&format!("warning: {note}"));
    }
    let source = Source::open(flags)?;
    let once = Once { flags, phases, urls: &urls, options, placement, targets, source, judged, hold: OnceCell::new() };
    if flags.load.dry_run {
        let server = once.server()?;
        for plan in once.plans(server.as_ref())? {
            terminal::result(&dry_run(&plan, &once.source)?)?;
        }
        return Ok(0);
    }
    let folder = out_folder(flags)?;
    let repeats = flags.output.repeats;
    let mut summaries = Vec::new();
    let mut codes = Vec::new();
    let mut any_kept = false;
    for k in 1..=repeats {
        let dir = folder.as_ref().map(|f| if repeats > 1 { f.join(k.to_string()) } else { f.clone() });
        for (summary, merged, kept) in once.run(dir.as_deref())? {
            if once.form() == FormatOut::Text {
                let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
                let gap = if summaries.is_empty() { "" } else { "\n" };
                terminal::result(&format!("{gap}{}", text::render(&summary, &merged.samples, colour)))?;
            }
            codes.push(code_of(&summary));
            // What was measured is told even when it cannot be kept.
            match kept {
                Ok(()) => any_kept = true,
                Err(error) => {
                    terminal::say_error(&error);
                    codes.push(error.exit_code());
                }
            }
            summaries.push(summary);
        }
        if summaries.last().is_some_and(|s| s.signal.is_some()) {
            break;
        }
    }
    match once.form() {
        FormatOut::Text => {}
        FormatOut::Json => terminal::result(&match summaries.as_slice() {
            [summary] if phases.is_empty() => summary.to_json(),
            several => json_array(several),
        })?,
        FormatOut::Csv => {
            let named: Vec<_> = summaries.iter().enumerate().map(|(k, s)| ((k + 1).to_string(), s)).collect();
            terminal::result(&csv::summaries(&named))?;
        }
    }
    if let Some(folder) = folder.filter(|_| any_kept) {
        terminal::say(&format!("run directory: {}", folder.display()));
    }
    // Of several statuses the first of this order is told.
    let order = [130, 143, 2, 3, 1, 99];
    Ok(order.into_iter().find(|code| codes.contains(code)).unwrap_or(0))
}

/// One run against a built-in target that nothing is printed of: a cell of `calibrate`.
///
/// Errors: as [`run`].
pub fn quietly(flags: &RunFlags) -> Result<Summary> {
    let urls = plan::urls(flags)?;
    let Url::Builtin { options, .. } = &urls[0] else { return Err(Error::usage("a calibration is against builtin:")) };
    let options = Some(target::Options::parse(options)?);
    let judged = Judged { percentiles: Percentile::DEFAULT.to_vec(), ..Judged::default() };
    let placement = plan::place(&flags.load, Some(0))?;
    let source = Source::open(flags)?;
    let once = Once {
        flags,
        phases: &[],
        urls: &urls,
        options,
        placement,
        targets: Vec::new(),
        source,
        judged,
        hold: OnceCell::new(),
    };
    let (summary, ..) = once.run(None)?.pop().ok_or(Error::Interrupted)?;
    match signal::asked() {
        Some(_) => Err(Error::Interrupted),
        None => Ok(summary),
    }
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
    phases: &'a [PhaseFlags],
    urls: &'a [Url],
    options: Option<target::Options>,
    placement: Placement,
    targets: Vec<Target>,
    source: Source,
    judged: Judged,
    /// Taken when the first load begins: from then on there is something to report, to the last word of it.
    hold: OnceCell<signal::Hold>,
}

impl Once<'_> {
    /// What goes to stdout at the end.
    fn form(&self) -> FormatOut {
        if self.flags.output.json { FormatOut::Json } else { self.flags.output.format_out.unwrap_or(FormatOut::Text) }
    }

    /// Starts the built-in server, if the run has one.
    fn server(&self) -> Result<Option<Server>> {
        self.options.as_ref().map(|options| Server::start(options, &self.placement)).transpose()
    }

    /// The plans of all phases: one without phases.
    fn plans(&self, server: Option<&Server>) -> Result<Vec<Plan>> {
        if self.phases.is_empty() {
            return Ok(vec![self.plan(self.flags, None, server)?]);
        }
        let of = |p: &PhaseFlags| {
            self.plan(&p.flags, Some(&p.name), server).map_err(|error| match error {
                Error::Usage(what) => Error::usage(format!("phase {}: {what}", p.name)),
                other => other,
            })
        };
        let mut plans = self.phases.iter().map(of).collect::<Result<Vec<_>>>()?;
        // Every worker is there in every phase; one without a slot only waits in it.
        let most = plans.iter().map(|p| p.cores.len()).max().unwrap_or(1);
        let cores = plans.iter().map(|p| &p.cores).find(|c| c.len() == most).cloned().unwrap_or_default();
        for plan in &mut plans {
            plan.cores.clone_from(&cores);
        }
        Ok(plans)
    }

    fn plan(&self, flags: &RunFlags, phase: Option<&str>, server: Option<&Server>) -> Result<Plan> {
        let mut targets = self.targets.clone();
        if let (Some(server), Url::Builtin { path, .. }) = (server, &self.urls[0]) {
            let mut target = server.target(path)?;
            plan::override_parts(&mut target, &self.flags.request);
            targets.push(target);
        }
        let mut plan = plan::plan(flags, phase, targets, self.source.sent(), &self.placement)?;
        plan.head.body_digest |= self.options.as_ref().is_some_and(|o| o.mode == target::Mode::Check);
        Ok(plan)
    }

    /// One run: an entry for each phase that was begun. The last part of it says whether it could be written to its directory.
    fn run(&self, dir: Option<&Path>) -> Result<Vec<(Summary, Merged, Result<()>)>> {
        let folder = |phase: Option<&PhaseFlags>| dir.map(|d| phase.map_or(d.to_path_buf(), |p| d.join(&p.name)));
        let folders: Vec<_> = if self.phases.is_empty() {
            vec![folder(None)]
        } else {
            self.phases.iter().map(|p| folder(Some(p))).collect()
        };
        let server = self.server()?;
        // A phase that is refused leaves no folder behind.
        let plans = self.plans(server.as_ref())?;
        let dirs =
            folders.into_iter().map(|d| d.map(|d| RunDir::prepare(&d)).transpose()).collect::<Result<Vec<_>>>()?;
        let keeping = Keeping::new(&self.flags.output);
        let mut legs = Vec::with_capacity(plans.len());
        for (i, (plan, dir)) in plans.iter().zip(&dirs).enumerate() {
            let keep = dir.as_ref().and_then(|dir| keeping.keep(dir));
            let seamless = self.phases.get(i + 1).is_some_and(|next| next.seamless);
            legs.push(engine::Phase { plan: plan.clone(), seamless, keep });
        }
        self.hold.get_or_init(signal::hold);
        let mut results = drive(self.flags, legs, &self.source)?;
        let counts = server.map(|s| s.running.stop());
        // The server does not tell phases apart: its counts, of all of them, stand with the last.
        if let Some(last) = results.last_mut() {
            last.target = counts;
            if plans.len() > 1 && counts.is_some() {
                last.notes.push("the target's counts are those of all phases".into());
            }
        }
        let ended = plans.iter().zip(results).zip(dirs);
        ended.map(|((plan, result), dir)| self.finish(plan, &result, dir, &keeping)).collect()
    }

    /// The figures of one phase, written to its directory.
    fn finish(
        &self,
        plan: &Plan,
        result: &RunResult,
        mut dir: Option<RunDir>,
        keeping: &Keeping,
    ) -> Result<(Summary, Merged, Result<()>)> {
        let mut merged = report::merge(result);
        merged.hide_secrets(&plan.head);
        let counted = match (&dir, &self.judged.counter) {
            (Some(dir), Some(counter)) => count_tokens(dir, counter, plan, result, &mut merged).map(Some),
            _ => Ok(None),
        };
        let asked = Asked {
            plan,
            dataset: &self.source.facts,
            percentiles: &self.judged.percentiles,
            thresholds: &self.judged.thresholds,
        };
        let mut summary = Summary::new(&asked, result, &merged);
        ceiling::judge(&mut summary, calibrate::kind(plan), self.judged.ceiling.as_ref());
        let told = counted.map(|counted| summary.counted_tokens = counted);
        let Some(dir) = &mut dir else { return Ok((summary, merged, told)) };
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
#[derive(Default)]
struct Judged {
    percentiles: Vec<Percentile>,
    thresholds: Vec<Threshold>,
    /// `--tokenize-after`.
    counter: Option<TokenCounter>,
    /// What this machine was calibrated to.
    ceiling: Option<Calibration>,
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
        let ceiling = calibrate::known(output.calibration.as_deref());
        Ok(Self { percentiles, thresholds, counter, ceiling })
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
        match self.facts.format.as_str() {
            "" | "inline" => Sent::Inline,
            _ if self.view.is_flat() => Sent::Dataset,
            _ => Sent::Sessions,
        }
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
fn drive(flags: &RunFlags, phases: Vec<engine::Phase>, source: &Source) -> Result<Vec<RunResult>> {
    let quiet = flags.output.quiet || !terminal::stderr_is_terminal();
    let plans: Vec<&Plan> = phases.iter().map(|p| &p.plan).collect();
    let mut meter = (!quiet).then(|| Meter::new(&plans, source.facts.records));
    let result = engine::run_phases(phases, source.view.clone(), &mut |progress| {
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
fn dry_run(plan: &Plan, source: &Source) -> Result<String> {
    let preview = engine::preview(plan, &source.view)?;
    let of = plan.phase.as_ref().map_or(String::new(), |name| format!(" of phase {name}"));
    let mut lines = vec![format!("nothing is sent: this is the plan{of}")];
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
        "end          {}{}{}{}then a drain of {} at most",
        end(plan.stop.requests.map(show_count), "requests"),
        end(plan.stop.duration_ns.map(show_duration), ""),
        end(plan.stop.sessions.map(show_count), "sessions"),
        end(plan.stop.passes.map(show_count), "passes"),
        show_duration(plan.stop.drain_ns)
    ));
    for (w, core) in plan.cores.iter().enumerate() {
        let part = &preview.workers[w];
        let due: Vec<String> = part.first_due_ns.iter().map(|&ns| show_duration(ns)).collect();
        lines.push(format!(
            "worker {w:<5} core {}, {} in flight over {} connections{}{}",
            core.map_or("any".to_owned(), |c| c.to_string()),
            show_count(u64::from(part.slots)),
            show_count(u64::from(part.connections)),
            part.requests.map_or(String::new(), |n| format!(", {} requests", show_count(n))),
            match due.as_slice() {
                [] => ", due when a slot is free".to_owned(),
                due => format!(", first due at {}", due.join(", ")),
            }
        ));
    }
    lines.push(format!("bodies sent  {}", preview.send));
    let memory: Vec<String> = preview.memory.iter().map(|(what, n)| format!("{what} {}", show_size(*n))).collect();
    lines.push(format!("memory       {}", memory.join(", ")));
    lines.push(format!("seed         {}", plan.seed));
    lines.push(String::new());
    Ok(lines.join("\n"))
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
        Shape::Users { users, rps } => format!("{users} users, {rps} turns a second in all"),
    }
}
