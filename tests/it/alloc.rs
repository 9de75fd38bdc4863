//! A worker allocates nothing between the start of the load and its end: this binary's allocator counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ringload::{
    cache::{BuildRequest, How, Origin, View, open_or_build},
    data::{plan::*, rows::Keep},
    engine::{self, quiet},
    target,
};

struct Counting;

static WHILE_QUIET: AtomicU64 = AtomicU64::new(0);
static EVER: AtomicU64 = AtomicU64::new(0);

fn count() {
    EVER.fetch_add(1, Ordering::Relaxed);
    if quiet::is_quiet() {
        WHILE_QUIET.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as GlobalAlloc::alloc; passed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as GlobalAlloc::dealloc; passed on.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: as GlobalAlloc::realloc; passed on.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What workers of this process allocated under load so far.
pub fn while_quiet() -> u64 {
    WHILE_QUIET.load(Ordering::Relaxed)
}

pub fn plan(address: std::net::SocketAddr, shape: Shape) -> Plan {
    Plan {
        phase: None,
        targets: vec![Target {
            url: "http://test/".into(),
            host: address.to_string(),
            path: "/v1/chat/completions".into(),
            addresses: vec![Address::Tcp(address)],
            tls: false,
            local: true,
        }],
        head: RequestHead { body_digest: true, ..RequestHead::default() },
        shape,
        catch_up: CatchUp::On,
        concurrency: 32,
        concurrency_asked: true,
        ramp: Vec::new(),
        prefill: None,
        cancel: None,
        connections: 32,
        stop: Stop {
            requests: Some(3_000),
            duration_ns: Some(20_000_000_000),
            sessions: None,
            passes: None,
            drain_ns: 5_000_000_000,
            max_errors: None,
        },
        warmup: Warmup::Requests(10),
        order: Order::Shuffle,
        seed: 1,
        timeouts: Timeouts {
            connect_ns: 5_000_000_000,
            first_byte_ns: 5_000_000_000,
            idle_ns: 5_000_000_000,
            request_ns: 10_000_000_000,
        },
        reuse: Reuse::KeepAlive,
        send: SendPath::Auto,
        stream: StreamMode::Auto,
        stream_end_any: false,
        pace: Pace::Sleep,
        cores: vec![None],
        goodput: Vec::new(),
        preconnect: true,
        ignore_delays: false,
        delay_cap_ns: u64::MAX,
        stop_session_on_failure: true,
        tls: Tls::default(),
        net: ringload::data::net::Net::default(),
    }
}

/// One run against the built-in server, with everything kept that a run can keep; what a worker allocated while it was under
/// load.
fn allocations(options: &str, body: &[u8], shape: Shape) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let keep = Keep { folder: folder.path().to_path_buf(), chunk_times: true, responses: u64::MAX };
    let options = target::Options::parse(options).unwrap();
    let listen = target::Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = target::start(listen, &options, &[None]).unwrap();
    let target::Listen::Tcp(address) = *server.addr() else { unreachable!() };
    let before = WHILE_QUIET.load(Ordering::Relaxed);
    let view = Arc::new(View::inline(body).unwrap());
    let result = engine::run(plan(address, shape), view, Some(&keep), &mut |_| {}).unwrap();
    let after = WHILE_QUIET.load(Ordering::Relaxed);
    server.stop();
    assert_eq!(result.workers[0].buckets.issued, 3_000, "{:?}", result.workers[0].buckets);
    let rows = folder.path().join("rows-0.spool").metadata().unwrap().len();
    assert!(rows >= 32 + 3_000 * 160, "{rows} bytes of rows");
    after - before
}

#[test]
fn the_allocator_counts() {
    let before = EVER.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(7)));
    assert!(EVER.load(Ordering::Relaxed) >= before + 2);
}

#[test]
fn a_worker_allocates_nothing_under_load_whatever_the_server_does() {
    let rate = || Shape::Rate {
        arrival: Arrival::Poisson,
        curve: vec![Segment { duration_ns: 0, from: 20_000.0, to: 20_000.0 }],
    };
    let chat = br#"{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}"#;
    let large = vec![b'x'; 300_000];
    for (options, body, shape) in [
        ("mode=check", &chat[..], Shape::Closed),
        ("mode=chat", &chat[..], rate()),
        ("mode=check", &large[..], Shape::Closed),
        ("mode=null&error=20%&close_every=3", &chat[..], Shape::Closed),
        ("mode=null&reset=10%&truncate=10%", &chat[..], Shape::Closed),
        ("mode=sse&ttft=1ms&itl=1ms&tokens=4", &chat[..], Shape::Closed),
    ] {
        assert_eq!(allocations(options, body, shape), 0, "{options}, {} byte body", body.len());
    }
}

/// Sessions of one to four turns.
fn sessions() -> Arc<View> {
    let folder = tempfile::tempdir().unwrap();
    for s in 0..20 {
        let turns: String = (0..s % 4 + 1).map(|t| format!("{{\"s\":{s},\"t\":{t}}}\n")).collect();
        std::fs::write(folder.path().join(format!("s{s:02}.jsonl")), turns).unwrap();
    }
    let request = BuildRequest::new(vec![Origin::Path(folder.path().to_path_buf())], None);
    open_or_build(&request, &How::new(1, &false.into(), &|_| ())).unwrap().view
}

/// Runs phases against the built-in server: what workers allocated under load, and how many requests were issued.
fn phases(options: &str, view: Arc<View>, changes: &[&dyn Fn(&mut Plan)]) -> (u64, u64) {
    let options = target::Options::parse(options).unwrap();
    let listen = target::Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = target::start(listen, &options, &[None]).unwrap();
    let target::Listen::Tcp(address) = *server.addr() else { unreachable!() };
    let phase = |change: &&dyn Fn(&mut Plan)| {
        let mut plan = plan(address, Shape::Closed);
        plan.stop.requests = Some(1_000);
        plan.warmup = Warmup::None;
        plan.cores = vec![None, None];
        change(&mut plan);
        engine::Phase { plan, seamless: true, keep: None }
    };
    let before = WHILE_QUIET.load(Ordering::Relaxed);
    let results = engine::run_phases(changes.iter().map(phase).collect(), view, &mut |_| {}).unwrap();
    let after = WHILE_QUIET.load(Ordering::Relaxed);
    server.stop();
    let issued = results.iter().flat_map(|r| &r.workers).map(|w| w.buckets.issued).sum();
    (after - before, issued)
}

#[test]
fn no_shape_allocates_under_load_and_no_change_from_phase_to_phase_does() {
    let rate =
        |rps| Shape::Rate { arrival: Arrival::Constant, curve: vec![Segment { duration_ns: 0, from: rps, to: rps }] };
    let sse = "mode=sse&ttft=1ms&itl=1ms&tokens=3";
    let chat = br#"{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}"#;
    let inline = || Arc::new(View::inline(chat).unwrap());
    let session = |p: &mut Plan| p.reuse = Reuse::Session;
    let users = |p: &mut Plan| p.shape = Shape::Users { users: 20, rps: 5_000.0 };
    let open = |p: &mut Plan| p.shape = rate(8_000.0);
    let counted = |p: &mut Plan| (p.stop.sessions, p.stop.requests) = (Some(400), None);
    let ramp = |p: &mut Plan| p.ramp = ringload::pace::ramp_of_slots(32, 50_000_000);
    let prefill = |p: &mut Plan| p.prefill = Some(4);
    let cancel = |p: &mut Plan| p.cancel = Some(Cancel { share: 0.3, after_ns: 500_000 });
    let none = |_: &mut Plan| ();
    type Case<'a> = (&'a str, &'a str, Arc<View>, &'a [&'a dyn Fn(&mut Plan)], u64);
    let cases: &[Case<'_>] = &[
        ("a connection a session", "mode=null", sessions(), &[&session], 1_000),
        ("users", "mode=null&delay=1ms", sessions(), &[&users], 1_000),
        ("sessions at a rate", "mode=null&error=20%", sessions(), &[&open], 1_000),
        ("a count of sessions", "mode=null", sessions(), &[&counted], 1_000),
        ("a ramp", "mode=null&delay=1ms", inline(), &[&ramp], 1_000),
        ("a cap on prefill", sse, inline(), &[&prefill], 1_000),
        ("breaking off", "mode=null&delay=1ms", inline(), &[&cancel], 1_000),
        ("phases", "mode=null&delay=2ms", inline(), &[&none, &open, &cancel], 3_000),
    ];
    for (what, options, view, changes, want) in cases {
        let (allocated, issued) = phases(options, view.clone(), changes);
        assert_eq!((allocated, issued), (0, *want), "{what}");
    }
}

/// Bodies of 256 KiB in an entry whose pages are dropped from memory, as after a restart of the machine.
fn cold_entry(folder: &std::path::Path, records: usize) -> Arc<View> {
    let dataset = folder.join("large.jsonl");
    let line = |k: usize| format!("{{\"n\":{k},\"x\":\"{}\"}}\n", format!("{k:08}").repeat(32 << 10));
    std::fs::write(&dataset, (0..records).map(line).collect::<String>()).unwrap();
    let request = BuildRequest::new(vec![Origin::Path(dataset)], Some(folder.join("cache")));
    let open = || open_or_build(&request, &How::new(1, &false.into(), &|_| ())).unwrap();
    let entry = open().entry.unwrap();
    let data = std::fs::File::open(entry.join("dataset.dat")).unwrap();
    data.sync_all().unwrap();
    let view = open().view;
    nix::fcntl::posix_fadvise(&data, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    view
}

#[test]
fn bodies_that_are_on_the_disk_arrive_whole_and_no_worker_stands_still_for_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let records = 192;
    let view = cold_entry(folder.path(), records);
    let options = target::Options::parse("mode=check").unwrap();
    let server = target::start(target::Listen::Tcp(([127, 0, 0, 1], 0).into()), &options, &[None]).unwrap();
    let target::Listen::Tcp(address) = *server.addr() else { unreachable!() };
    let mut plan = plan(address, Shape::Closed);
    (plan.warmup, plan.stop.requests) = (Warmup::None, Some(records as u64));
    let before = while_quiet();
    let result = engine::run(plan, view, None, &mut |_| {}).unwrap();
    assert_eq!(while_quiet() - before, 0, "a wait for the disk allocates nothing");
    let counts = server.stop();
    let worker = &result.workers[0];
    assert_eq!((worker.buckets.succeeded, counts.verified, counts.wrong), (records as u64, records as u64, 0));
    // Touched by the worker itself, these bodies would be some 400 with a read-ahead of 128 KiB, and still 16 with one of 8 MiB;
    // and none of them would have been looked at before. With all of them read ahead in time there is neither.
    assert!(worker.cost.major_faults < 32, "{:?}", worker.cost);
    assert!(worker.cost.cold_slices > 0 || worker.cost.major_faults <= 4, "{:?}", worker.cost);
    let told = result.notes.iter().any(|note| note.contains("waited for the client's disk"));
    assert_eq!(told, worker.cost.cold_slices > 0, "{:?}", result.notes);
}
