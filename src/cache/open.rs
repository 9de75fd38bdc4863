//! The one way to a dataset, for `run`, `build` and `inspect`: find the entry, or build it.
//!
//! Look up; lock; look up again; build beside it; rename. Whatever stands in the way of the cache makes the build private: the
//! same bytes, from files without a name, and nothing kept. Only a full disk, a bad dataset and an interrupt are errors.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    How,
    body::{self, Asked, Bodies, Resources},
    build::{self, Work},
    check,
    entry::{self, Depth, Doubt, Wanted},
    folder::{self, Temporary, Trust},
    input::{Input, Origin, Stamp},
    layout,
    lock::{self, Lock},
    manifest::Manifest,
    memo::Memo,
    pack,
    prompt::{Derivation, Trace},
    publish::{Published, publish},
    report::BuildReport,
    spec::{Dedup, Key, Reading, Spec, Store},
    view::View,
    writer::{Target, Writer, Written},
};
use crate::{
    data::{Error, Result},
    formats::{self, Format},
    sys::{self, mem::Map},
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// Files and directories, in order, or standard input.
    pub inputs: Vec<Origin>,
    /// None is `auto`.
    pub format: Option<Format>,
    /// Which lines are records.
    pub reading: Reading,
    /// How bodies are made of records that are none; only looked at for those.
    pub shaping: Asked,
    /// `--dedup`.
    pub dedup: Dedup,
    /// `--store`.
    pub store: Store,
    /// `--compress zstd`: the entry is left compressed.
    pub compress: bool,
    /// Where entries live; none keeps nothing, as `--no-cache`.
    pub cache: Option<PathBuf>,
    /// `--verify`: body bytes are checked too.
    pub verify: bool,
    /// `--lock-timeout`.
    pub lock_timeout: Duration,
    /// What a full cache means.
    pub when_full: WhenFull,
}

/// What is done when the device of the cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// An error: the entry was what was asked for.
    Fail,
    /// A private build elsewhere.
    BuildPrivately,
}

impl BuildRequest {
    /// The defaults for these inputs, with an entry in `cache`.
    pub fn new(inputs: Vec<Origin>, cache: Option<PathBuf>) -> Self {
        Self {
            inputs,
            format: None,
            reading: Reading::default(),
            shaping: Asked::default(),
            dedup: Dedup::Auto,
            store: Store::Copy,
            compress: false,
            cache,
            verify: false,
            lock_timeout: Duration::from_secs(600),
            when_full: WhenFull::Fail,
        }
    }
}

/// Where the bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// An entry was there.
    Hit,
    /// It was built.
    Miss,
    /// It was built privately and is gone when the view is.
    Off,
}

impl CacheState {
    /// The word of reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Off => "off",
        }
    }
}

/// A dataset that is ready.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The dataset.
    pub view: Arc<View>,
    /// Where it came from.
    pub state: CacheState,
    /// Its key.
    pub key: Key,
    /// Folder of the entry; none for a private build.
    pub entry: Option<PathBuf>,
    /// What was said on the way.
    pub notices: Vec<String>,
    /// What was seen in the bodies.
    pub report: BuildReport,
    /// Format, as told or found.
    pub format: Format,
    /// Bad records left out.
    pub skipped: u64,
    /// Seconds from the call to here.
    pub seconds: f64,
}

/// Finds the entry of a dataset, or builds it. See the head of this file.
pub fn open_or_build(request: &BuildRequest, how: &How<'_>) -> Result<Opened> {
    open_with(request, how, File::try_lock)
}

/// Takes the lock of a file.
pub(super) type TryLock = fn(&File) -> std::result::Result<(), TryLockError>;

/// The same, with locks of another kind: those of a file system that has none, or lies.
pub(super) fn open_with(request: &BuildRequest, how: &How<'_>, try_lock: TryLock) -> Result<Opened> {
    let began = Instant::now();
    let cache = request.cache.as_deref().and_then(|cache| match folder::trust(cache) {
        Trust::Ours => Some(cache),
        Trust::No(why) => {
            how.notice(format!("the cache {} is not used: {why}; building privately", cache.display()));
            None
        }
    });
    let memo = cache.map_or_else(Memo::none, Memo::in_cache);
    let mut input = Input::open(&request.inputs, &spill_folder(cache), how)?;
    let format = match request.format {
        Some(format) => format,
        None => build::detect(&input)?,
    };
    let (shaping, mut resources) = body::resolve(&request.shaping, format, &request.reading)?.unzip();
    let digest = input.digest(&memo, how)?;
    let mut spec = spec_of(request, format, digest, shaping);
    if formats::shape(format) == formats::Shape::Pools {
        spec.reading.pools = input.sources.iter().map(|s| formats::pool_name(&s.name).to_owned()).collect();
    }
    if let (Some(shaping), Some(resources), true) = (&mut spec.shaping, &mut resources, format.names_files()) {
        // What the dataset names is as much its content as what it says.
        input.make_ready(digest, how)?;
        resources.media.beside = input.sources[0].folder();
        let reading = Spec { shaping: None, ..Spec::verbatim(digest, format.name()) };
        let reading = Spec { reading: request.reading.clone(), ..reading };
        build::survey(&input, format, &reading, &mut resources.media, how)?;
        shaping.media = resources.media.digest();
    }
    let mut search = Search { request, how, cache, memo, input, spec, resources, format, began, try_lock };
    search.find_or_build()
}

/// Everything that reaches the bytes, and nothing else.
pub(super) fn spec_of(
    request: &BuildRequest,
    format: Format,
    input: super::Digest,
    shaping: Option<body::Shaping>,
) -> Spec {
    Spec {
        layout: layout::VERSION,
        input,
        format: format.name().to_owned(),
        reading: Reading {
            // Only one format looks at each of these.
            verbatim_lines: request.reading.verbatim_lines && format == Format::RawPayload,
            reformat: request.reading.reformat && format == Format::SagemakerDataCapture,
            synthesized_answers: request.reading.synthesized_answers
                && matches!(format, Format::MultiTurn | Format::DagJsonl),
            entries: request.reading.entries.filter(|_| format == Format::RandomPool),
            draw_seed: if format == Format::RandomPool { request.reading.draw_seed } else { 0 },
            ..request.reading.clone()
        },
        // A body that stays where it is shares nothing.
        dedup: if request.store == Store::Reference { Dedup::Off } else { request.dedup },
        store: request.store,
        shaping,
    }
}

struct Search<'a> {
    request: &'a BuildRequest,
    how: &'a How<'a>,
    cache: Option<&'a Path>,
    memo: Memo,
    input: Input,
    spec: Spec,
    /// What the spec has the digests of; none for a format whose records are bodies.
    resources: Option<Resources>,
    format: Format,
    began: Instant,
    try_lock: TryLock,
}

/// Files of a build and what went into them.
struct Made {
    written: Written,
    seconds: f64,
}

impl Search<'_> {
    fn find_or_build(&mut self) -> Result<Opened> {
        let key = self.spec.key();
        let Some(cache) = self.cache else { return self.build_privately() };
        if let Some(view) = self.look_up(cache, key, Tell::Doubts)? {
            return self.hit(view, cache);
        }
        let timeout = self.request.lock_timeout;
        let look = || self.look_up(cache, key, Tell::Nothing);
        let lock = lock::wait(cache, key, timeout, self.how, self.try_lock, look)?;
        let held = match lock {
            Lock::Found(view) => return self.hit(view, cache),
            Lock::Denied(why) => {
                self.how.notice(format!("{why}; building privately"));
                return self.build_privately();
            }
            Lock::Held(file) => Some(file),
            Lock::Missing => {
                self.how.notice("the cache's file system has no locks; building without".into());
                None
            }
        };
        if let Some(view) = self.look_up(cache, key, Tell::Nothing)? {
            return self.hit(view, cache);
        }
        if held.is_some() {
            // Nobody else builds this key: what is there of it is a dead builder's.
            folder::remove_leftovers(&folder::leftovers(cache, Some(key)));
        }
        match self.build_entry(cache, key) {
            Ok(opened) => Ok(opened),
            Err(Error::NoSpace { path }) if self.request.when_full == WhenFull::BuildPrivately => {
                self.how.notice(format!("no space left on the device of {}; building privately", path.display()));
                self.build_privately()
            }
            Err(Error::File { what, path, source }) if path.starts_with(cache) && sys::fs::not_writable(&source) => {
                self.how.notice(format!("{what} {}: {source}; building privately", path.display()));
                self.build_privately()
            }
            Err(error) => Err(error),
        }
    }

    /// The entry, when it is there and good.
    fn look_up(&self, cache: &Path, key: Key, tell: Tell) -> Result<Option<View>> {
        self.how.check()?;
        let folder = entry::path(cache, key);
        let wanted = Wanted { folder: &folder, key, reference: self.input.sources[0].file() };
        let depth = if self.request.verify { Depth::Bodies } else { Depth::Index };
        match entry::open(&wanted, depth, &self.memo, self.how.threads) {
            Ok(view) => {
                // What was named by its digest a moment ago is mapped now: nobody may have written to it in between.
                if self.spec.store == Store::Reference {
                    self.input.sources[0].check_untouched()?;
                }
                Ok(Some(view))
            }
            Err(Doubt::Absent) => Ok(None),
            Err(Doubt::Bad(why)) => {
                if tell == Tell::Doubts {
                    self.how
                        .notice(format!("cache entry {:.12} is not used: {why}; it is built again", key.to_string()));
                }
                Ok(None)
            }
        }
    }

    fn hit(&self, view: View, cache: &Path) -> Result<Opened> {
        let folder = entry::path(cache, view.key());
        entry::touch(&folder);
        if view.data_was_checked() {
            self.how.notice(format!(
                "the data of cache entry {:.12} was copied or touched since it was built: every byte of it was checked",
                view.key().to_string()
            ));
        }
        self.pack_again(&folder);
        Ok(self.opened(view, CacheState::Hit, Some(folder)))
    }

    /// An entry that is asked for compressed is left so, whoever unpacked it. It is open already: that it cannot be is only said.
    fn pack_again(&self, folder: &Path) {
        if self.request.compress
            && std::fs::symlink_metadata(folder.join(entry::DATA)).is_ok()
            && let Err(error) = pack::pack(folder)
        {
            // Packed or removed by somebody else in this moment.
            let gone = matches!(&error, Error::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound);
            if !gone {
                self.how.notice(format!("the entry stays uncompressed: {error}"));
            }
        }
    }

    fn opened(&self, view: View, state: CacheState, entry: Option<PathBuf>) -> Opened {
        let (report, skipped) = view.manifest().map(|m| (m.report.clone(), m.skipped)).unwrap_or_default();
        Opened {
            key: view.key(),
            view: Arc::new(view),
            state,
            entry,
            notices: self.how.take_notices(),
            report,
            format: self.format,
            skipped,
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }

    /// Builds beside the entry and puts it in its place.
    fn build_entry(&mut self, cache: &Path, key: Key) -> Result<Opened> {
        let temporary = Temporary::new(cache, key)?;
        let path = |name: &str| temporary.path().join(name);
        let create = |name: &str| {
            let open = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path(name));
            open.map_err(|e| Error::file("cannot create", &path(name), e))
        };
        let data = match self.spec.store {
            Store::Copy => Some((create(entry::DATA)?, path(entry::DATA))),
            Store::Reference => None,
        };
        let (index, index_path) = (create(entry::INDEX)?, path(entry::INDEX));
        let made = self.build(data.as_ref().map(|(f, p)| (f, p.as_path())), (&index, &index_path), temporary.path())?;
        if let Some((file, path)) = &data {
            file.sync_all().map_err(|e| Error::file("cannot sync", path, e))?;
        }
        index.sync_all().map_err(|e| Error::file("cannot sync", &index_path, e))?;
        if self.request.compress && data.is_some() {
            pack::pack(temporary.path())?;
        }
        let mut manifest = self.manifest(&made);
        if let (Some((file, path)), false) = (&data, self.request.compress) {
            let meta = file.metadata().map_err(|e| Error::file("cannot look at", path, e))?;
            manifest.data_stamp = Some(Stamp::of(&meta).identity());
        }
        let mut file = create(entry::MANIFEST)?;
        let wrote = file.write_all(manifest.text().as_bytes()).and_then(|()| file.sync_all());
        wrote.map_err(|e| Error::file("cannot write", &path(entry::MANIFEST), e))?;
        folder::sync(temporary.path())?;
        self.how.check()?;
        if let (Some((file, _)), Some(_)) = (&data, &manifest.data_stamp) {
            // From its stamp on every change shows. One from before it shows nowhere but in the bytes.
            let sum = check::of_file(file, manifest.data_bytes, self.how.threads);
            if !sum.is_ok_and(|sum| format!("{sum:016x}") == manifest.data_check) {
                self.how.notice("somebody wrote to the entry while it was built; building privately".into());
                return self.build_privately();
            }
        }
        let folder = entry::path(cache, key);
        let good = || Ok(self.look_up(cache, key, Tell::Nothing)?.is_some());
        let state = match publish(&temporary, &folder, cache, key, good)? {
            Published::Ours => CacheState::Miss,
            Published::Theirs => CacheState::Hit,
        };
        drop(temporary);
        match self.look_up(cache, key, Tell::Nothing)? {
            Some(view) => {
                self.pack_again(&folder);
                Ok(self.opened(view, state, Some(folder)))
            }
            // Removed, or damaged, in the moment since: the dataset is still there to be built from.
            None => self.build_privately(),
        }
    }

    /// Builds into files without a name.
    fn build_privately(&mut self) -> Result<Opened> {
        let mut last = None;
        for folder in private_folders(self.cache) {
            match self.build_private_in(&folder) {
                Ok(view) => return Ok(self.opened(view, CacheState::Off, None)),
                Err(error @ Error::NoSpace { .. }) => last = Some(error),
                Err(Error::File { what, path, source })
                    if sys::fs::not_writable(&source) && path.starts_with(&folder) =>
                {
                    last.get_or_insert(Error::File { what, path, source });
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::usage("there is no folder for temporary files; set TMPDIR")))
    }

    fn build_private_in(&mut self, folder: &Path) -> Result<View> {
        let unnamed =
            || sys::fs::unnamed_file(folder).map_err(|e| Error::file("cannot make a temporary file in", folder, e));
        let data = match self.spec.store {
            Store::Copy => Some(unnamed()?),
            Store::Reference => None,
        };
        let index = unnamed()?;
        let made = self.build(data.as_ref().map(|file| (file, folder)), (&index, folder), folder)?;
        let manifest = self.manifest(&made);
        let mapped = |e| Error::file("cannot map a temporary file in", folder, e);
        let data = match (data, self.input.sources[0].file()) {
            (Some(data), _) => data,
            (None, Some(file)) => file.try_clone().map_err(mapped)?,
            (None, None) => return Err(reference_refused()),
        };
        let index = Map::file(index, manifest.index_bytes).map_err(mapped)?;
        let data = Map::file(data, manifest.data_bytes).map_err(mapped)?;
        if self.spec.store == Store::Reference {
            self.input.sources[0].check_untouched()?;
        }
        View::new(index, Arc::new(data), Some(manifest)).map_err(Error::usage)
    }

    fn build(&mut self, data: Option<(&File, &Path)>, index: (&File, &Path), spools: &Path) -> Result<Made> {
        let began = Instant::now();
        self.input.make_ready(self.spec.input, self.how)?;
        let plain_file = self.input.sources.len() == 1 && self.input.sources[0].file().is_some();
        let target = match data {
            Some((file, path)) => Target::File(file, path),
            None if plain_file => Target::Reference,
            None => return Err(reference_refused()),
        };
        let maker = self.maker()?;
        let work = Work { spec: &self.spec, format: self.format, input: &self.input, maker: maker.as_ref() };
        let writer = Writer::new(target, Some(spools), self.spec.dedup, self.spec.reading.clone());
        let writer = build::run(work, writer, self.how)?;
        let lengths = maker.as_ref().and_then(Bodies::lengths);
        if let Some(lengths) = &lengths {
            self.how.notice(lengths.line());
        }
        let key = self.spec.key();
        let mut written = writer.finish(key.0, index, Some(spools), &self.input.sources[0].name)?;
        written.report.lengths = lengths.map(Into::into);
        if let Some(synthesis) = self.spec.shaping.as_ref().and_then(|s| s.synthesis.as_ref()) {
            written.report.token_source = synthesis.tokenizer.name();
        }
        Ok(Made { written, seconds: began.elapsed().as_secs_f64() })
    }

    /// What makes the bodies; none when the records are bodies already.
    fn maker(&self) -> Result<Option<Bodies<'_>>> {
        let (Some(shaping), Some(resources)) = (&self.spec.shaping, &self.resources) else { return Ok(None) };
        let aiperf = shaping.synthesis.as_ref().is_some_and(|s| s.derivation == Derivation::Aiperf);
        let file_sha256 = match self.input.sources.as_slice() {
            [source] if aiperf => Some(source.plain_sha256()?),
            _ => None,
        };
        let trace = Trace { digest: self.spec.input.0, file_sha256 };
        let mut maker = Bodies::new(shaping, resources, &trace, self.how.threads)?;
        if let Some(mut survey) = maker.survey() {
            build::survey(&self.input, self.format, &self.spec, &mut survey, self.how)?;
            maker.surveyed(survey);
        }
        Ok(Some(maker))
    }

    fn manifest(&self, made: &Made) -> Manifest {
        let Written { report, totals, skipped, index_bytes, index_check } = &made.written;
        Manifest {
            version: layout::VERSION,
            key: self.spec.key(),
            spec: self.spec.clone(),
            records: totals.records,
            body_bytes: totals.body_bytes,
            data_bytes: totals.data_bytes,
            data_check: format!("{:016x}", totals.data_check),
            data_stamp: None,
            index_bytes: *index_bytes,
            index_check: format!("{index_check:016x}"),
            skipped: *skipped,
            report: report.clone(),
            reference: match self.spec.store {
                Store::Copy => None,
                // A name that is no text cannot be kept; the entry is then only of use with its dataset.
                Store::Reference => {
                    let path = std::fs::canonicalize(&self.input.sources[0].name).ok();
                    path.filter(|path| path.to_str().is_some())
                }
            },
            made_by: concat!("ringload ", env!("CARGO_PKG_VERSION")).into(),
            made_at: jiff::Timestamp::now().to_string(),
            seconds: made.seconds,
        }
    }
}

/// What a look-up says of an entry that is no good.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    Doubts,
    /// It was said before.
    Nothing,
}

fn reference_refused() -> Error {
    Error::usage(
        "--store reference needs one uncompressed file; it cannot point into a pipe, a directory or several files",
    )
}

/// Where a long standard input goes.
fn spill_folder(cache: Option<&Path>) -> PathBuf {
    cache.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Where private builds go, the first one that has room: not the cache before the others, since it is what could not be used.
fn private_folders(cache: Option<&Path>) -> Vec<PathBuf> {
    let mut folders = vec![std::env::temp_dir()];
    folders.extend(cache.map(Path::to_path_buf));
    folders.push("/var/tmp".into());
    folders.dedup();
    folders
}
