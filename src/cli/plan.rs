//! Flags to plan: what the user typed becomes what a run needs, checked, with nothing left to look up.

use std::{io::Read, net::SocketAddr, path::Path};

use super::{
    flags::{
        LoadFlags, OnFailedTurn, OnOff, OrderFlag, PaceFlag, RequestFlags, ReuseFlag, RunFlags, SendFlag, StreamEnd,
        StreamFlag,
    },
    load::{self, Load},
    url::Url,
};
use crate::{
    data::{
        Error, Result, limits,
        net::Net,
        plan::{
            CatchUp, GoodputLimit, Order, Pace, Plan, RequestHead, Reuse, Secret, SendPath, Shape, StreamMode, Target,
            Timeouts,
        },
    },
    report::threshold,
    sys::{cpu, limit},
    wire::request,
};

/// Requests in flight of a closed loop without `-c`.
pub const CONCURRENCY: u64 = 64;

/// Which cores serve what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// One entry a worker.
    pub workers: Vec<Option<u32>>,
    /// One entry a thread of the built-in target; empty without one.
    pub server: Vec<Option<u32>>,
    /// What the user should know about it.
    pub warnings: Vec<String>,
}

/// The URLs of a run, taken apart. A built-in target stands alone.
///
/// Errors: as [`Url::parse`]; a number among them is a value meant for `-q` of another tool.
pub fn urls(flags: &RunFlags) -> Result<Vec<Url>> {
    let mut urls = Vec::with_capacity(flags.urls.len());
    for text in &flags.urls {
        if text.parse::<f64>().is_ok() {
            let hint = if flags.output.quiet { "; -q means --quiet here, the rate is -R, --rate" } else { "" };
            return Err(Error::usage(format!("URL '{text}': a number is no URL{hint}")));
        }
        urls.push(Url::parse(text)?);
    }
    if let (Url::Builtin { .. }, Some(resolve)) = (&urls[0], flags.net.resolve.first()) {
        return Err(Error::usage(format!("--resolve '{resolve}': builtin: has no host name to resolve; leave it out")));
    }
    if let (Url::Builtin { .. }, Some(detour)) = (&urls[0], flags.net.connect_to.first()) {
        return Err(Error::usage(format!(
            "--connect-to '{detour}': builtin: has no host name to replace; leave it out"
        )));
    }
    if urls.len() > 1 && urls.iter().any(|u| matches!(u, Url::Builtin { .. })) {
        return Err(Error::usage("builtin: cannot be one of several URLs"));
    }
    Ok(urls)
}

/// The targets behind URLs that are no built-in one.
///
/// Errors: as [`super::net::NetFlags::targets`].
pub fn targets(urls: &[Url], flags: &RunFlags) -> Result<Vec<Target>> {
    let mut targets = flags.net.targets(urls)?;
    for target in &mut targets {
        override_parts(target, &flags.request);
    }
    Ok(targets)
}

/// `--path` and `--host` in place of the URL's.
pub fn override_parts(target: &mut Target, flags: &RequestFlags) {
    if let Some(path) = &flags.path {
        target.path = if path.starts_with('/') { path.clone() } else { format!("/{path}") };
    }
    if let Some(host) = &flags.host {
        target.host = host.clone();
    }
}

/// The target of a server that this process started.
pub fn builtin_target(path: &str, address: SocketAddr) -> Target {
    Target {
        url: format!("builtin:{path}"),
        host: address.to_string(),
        path: path.to_owned(),
        addresses: vec![crate::data::plan::Address::Tcp(address)],
        tls: false,
        local: true,
    }
}

/// Chooses cores: workers and the built-in server keep off each other where there are enough.
///
/// Errors: a core list that cannot be, or that is outside the allowed mask.
pub fn place(load: &LoadFlags, server_threads: Option<usize>) -> Result<Placement> {
    let allowed = cpu::allowed_spread();
    let mut warnings = Vec::new();
    let chosen = match &load.cores {
        None => allowed.clone(),
        Some(list) => {
            let cores = cpu::parse_list(list)?;
            if let Some(core) = cores.iter().find(|c| !allowed.contains(c)) {
                return Err(Error::Environment {
                    call: "--cores",
                    what: format!("core {core} of {list} is not among the allowed {}", list_of(&allowed)),
                    cure: "choose allowed ones, or widen the mask (taskset, cpuset)".into(),
                });
            }
            cores
        }
    };
    // The built-in server gets half of the cores that the workers leave, at least one; with one core in all, both share it.
    let threads = load.threads.map(|t| t as usize);
    let kept = match server_threads {
        None => 0,
        Some(n) if n > 0 => n.min(allowed.len().saturating_sub(1)),
        Some(_) => match threads {
            Some(t) => allowed.len().saturating_sub(t).max(1),
            None => (allowed.len() / 2).max(1),
        },
    };
    let for_workers: Vec<u32> = if load.cores.is_some() || allowed.len() == 1 {
        chosen
    } else {
        chosen[..chosen.len().saturating_sub(kept).max(1)].to_vec()
    };
    let workers = threads.unwrap_or(for_workers.len()).min(limits::WORKERS_MAX);
    let pin = |core: u32| (!load.no_pin).then_some(core);
    let placed = (0..workers).map(|w| pin(for_workers[w % for_workers.len()])).collect();
    if workers > for_workers.len() {
        warnings.push(format!(
            "{workers} workers share the {} allowed cores {}: their latencies suffer; use -t {}",
            for_workers.len(),
            list_of(&for_workers),
            for_workers.len()
        ));
    }
    let mut server = Vec::new();
    if let Some(asked) = server_threads {
        let left: Vec<u32> =
            allowed.iter().copied().filter(|c| !for_workers[..workers.min(for_workers.len())].contains(c)).collect();
        let cores = if left.is_empty() { &allowed } else { &left };
        if left.is_empty() {
            warnings.push(format!(
                "the built-in server shares core {} with a worker: both slow each other",
                list_of(cores)
            ));
        }
        let n = if asked > 0 { asked } else { cores.len() };
        server = (0..n).map(|i| pin(cores[i % cores.len()])).collect();
    }
    Ok(Placement { workers: placed, server, warnings })
}

fn list_of(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// What is sent, as far as the plan must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Records of a dataset, some of which are later turns.
    Sessions,
    /// Records of a dataset, each by itself.
    Dataset,
    /// One body, or none, again and again.
    Inline,
}

/// The plan of a run.
///
/// Errors: flags that contradict each other or do not go with what is sent, and limits that the machine has not got.
pub fn plan(
    flags: &RunFlags,
    phase: Option<&str>,
    mut targets: Vec<Target>,
    sent: Sent,
    placement: &Placement,
) -> Result<Plan> {
    let load = &flags.load;
    let made = Load::new(flags, sent)?;
    let stop = made.stop(flags, sent);
    let open_loop = !matches!(made.shape, Shape::Closed);
    let (concurrency, connections) = slots(load, made.concurrency(load), open_loop)?;
    let prefill = load.prefill_concurrency.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let users = if let Shape::Users { users, .. } = made.shape { users } else { u32::MAX };
    let mut cores = placement.workers.clone();
    // A worker without a slot would only wait.
    cores.truncate((connections.min(concurrency).min(prefill.unwrap_or(u32::MAX)).min(users) as usize).max(1));
    let goodput = goodput(flags)?;
    let shared_core = placement.workers.len() > 1 && has_duplicates(&placement.workers)
        || placement.server.iter().any(|s| placement.workers.contains(s));
    let tls = flags.tls.plan(&targets)?;
    let net = net(flags, &mut targets)?;
    Ok(Plan {
        phase: phase.map(str::to_owned),
        targets,
        tls,
        net,
        head: head(&flags.request, flags.source.body.is_some() || flags.source.body_file.is_some())?,
        shape: made.shape,
        ramp: made.ramp,
        prefill,
        cancel: load::cancel(load),
        catch_up: if load.catch_up == Some(OnOff::Off) { CatchUp::Off } else { CatchUp::On },
        concurrency,
        concurrency_asked: load.concurrency.is_some(),
        connections,
        stop,
        warmup: load.warmup.unwrap_or(crate::data::plan::Warmup::None),
        order: match flags.source.order.unwrap_or(OrderFlag::Sequential) {
            OrderFlag::Sequential => Order::Sequential,
            OrderFlag::Shuffle => Order::Shuffle,
            OrderFlag::Random => Order::Random,
        },
        seed: flags.source.seed,
        timeouts: Timeouts {
            connect_ns: flags.request.connect_timeout,
            first_byte_ns: flags.request.first_byte_timeout.unwrap_or(u64::MAX),
            idle_ns: flags.request.idle_timeout.unwrap_or(u64::MAX),
            request_ns: flags.request.timeout,
        },
        reuse: match flags.request.reuse {
            ReuseFlag::KeepAlive => Reuse::KeepAlive,
            ReuseFlag::Never => Reuse::Never,
            ReuseFlag::Session => Reuse::Session,
        },
        send: match flags.request.send {
            SendFlag::Auto => SendPath::Auto,
            SendFlag::Copy => SendPath::Copy,
            SendFlag::Zerocopy => SendPath::ZeroCopy,
            SendFlag::Sendfile => SendPath::File,
        },
        stream: match flags.request.stream {
            StreamFlag::Auto => StreamMode::Auto,
            StreamFlag::Sse => StreamMode::Sse,
            StreamFlag::Off => StreamMode::Off,
        },
        stream_end_any: flags.request.stream_end == StreamEnd::Any,
        pace: match load.pace.unwrap_or(PaceFlag::Hybrid) {
            PaceFlag::Sleep => Pace::Sleep,
            // Spinning on a core that somebody else needs makes both late.
            PaceFlag::Hybrid if shared_core => Pace::Sleep,
            PaceFlag::Hybrid => Pace::Hybrid,
            PaceFlag::Spin => Pace::Spin,
        },
        cores,
        goodput,
        preconnect: flags.net.opens_ahead() && flags.request.reuse != ReuseFlag::Never,
        ignore_delays: load.ignore_delays,
        delay_cap_ns: load.delay_cap.unwrap_or(u64::MAX),
        stop_session_on_failure: load.on_failed_turn != Some(OnFailedTurn::Continue),
    })
}

/// The limits of `--goodput`.
///
/// Errors: what cannot be a limit.
pub fn goodput(flags: &RunFlags) -> Result<Vec<GoodputLimit>> {
    match &flags.output.goodput {
        None => Ok(Vec::new()),
        Some(text) => threshold::parse_goodput(text).map_err(|e| Error::usage(format!("--goodput: {e}"))),
    }
}

/// How connections are made to these targets.
///
/// Errors: flags that contradict each other or are of no use.
pub fn net(flags: &RunFlags, targets: &mut [Target]) -> Result<Net> {
    let never = flags.request.reuse == ReuseFlag::Never;
    if never && flags.net.preconnect == Some(OnOff::On) {
        return Err(Error::usage("--preconnect on: with --reuse never each request opens its own connection"));
    }
    flags.net.plan(targets, !never)
}

fn has_duplicates(cores: &[Option<u32>]) -> bool {
    cores.iter().enumerate().any(|(i, c)| c.is_some() && cores[..i].contains(c))
}

/// Requests in flight, and sockets, at most.
fn slots(load: &LoadFlags, concurrency: Option<u64>, open_loop: bool) -> Result<(u32, u32)> {
    let most = u64::from(limits::CONNECTIONS_PER_WORKER_MAX);
    let too_many = |flag: &str, n: u64| Error::usage(format!("{flag} {n}: at most {most}"));
    let asked = concurrency.or(load.connections.filter(|_| !open_loop));
    let concurrency = match asked {
        Some(n) if n > most => return Err(too_many("-c", n)),
        Some(n) => n,
        None if open_loop => {
            let (_, hard) = limit::open_files();
            u64::from(limits::OPEN_LOOP_CONNECTIONS).min(hard.saturating_sub(limits::FILES_RESERVED)).max(1)
        }
        None => CONCURRENCY,
    };
    let connections = load.connections.unwrap_or(concurrency);
    if connections > most {
        return Err(too_many("--connections", connections));
    }
    limit::ensure_files(connections)?;
    Ok((concurrency as u32, connections as u32))
}

fn head(flags: &RequestFlags, body_given: bool) -> Result<RequestHead> {
    let mut headers = Vec::with_capacity(flags.headers.len() + 1);
    if flags.reuse == ReuseFlag::Never {
        headers.push(("Connection".to_owned(), "close".to_owned()));
    }
    for text in &flags.headers {
        headers.push(request::parse_header_flag(text)?);
    }
    let bearer = match &flags.bearer_env {
        None => None,
        Some(name) => match std::env::var(name) {
            Ok(value) if !value.is_empty() => Some(Secret(value)),
            _ => return Err(Error::usage(format!("--bearer-env {name}: the environment variable is not set"))),
        },
    };
    Ok(RequestHead {
        // A body that was given is posted, an empty one too: the engine sees no body then, and would choose GET.
        method: flags.method.clone().or_else(|| body_given.then(|| "POST".to_owned())),
        headers,
        bearer,
        body_digest: flags.body_digest,
        accept_stream: flags.stream == StreamFlag::Sse,
    })
}

/// Reads the one body of `-b` or `-B`; none for plain GETs.
///
/// Errors: a file that cannot be read, or that has more than a body may.
pub fn inline_body(body: Option<&str>, file: Option<&Path>) -> Result<Option<Vec<u8>>> {
    match (body, file) {
        (Some(text), _) => Ok(Some(text.as_bytes().to_vec())),
        (None, Some(path)) => {
            let most = limits::INLINE_BODY_BYTES_MAX;
            let mut body = Vec::new();
            let read = std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut body));
            match read {
                Ok(n) if n as u64 > most => Err(Error::usage(format!(
                    "-B {}: more than {} MiB; give larger bodies as a dataset with -f",
                    path.display(),
                    most >> 20
                ))),
                Ok(_) => Ok(Some(body)),
                Err(e) => Err(Error::file("cannot read the body file", path, e)),
            }
        }
        (None, None) => Ok(None),
    }
}
