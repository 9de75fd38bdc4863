//! The user-space part of the hot path, cell by cell, for counting instructions: `scripts/instructions` runs this under valgrind.
//!
//! `instructions CELL N` does the work of one cell N times and ends; without arguments it names the cells. Set-up costs the same
//! whatever N is, so that the difference of two runs is the loop alone. Nothing here reads a clock, draws from the system or
//! depends on an address.

use std::{hint::black_box, sync::Arc};

use clap::Parser;
use ringload::{
    cli::{
        flags::{Cli, Command},
        plan::{self, Placement, Sent},
    },
    data::{
        Nanos, RecordId, WorkerId,
        outcome::Outcome,
        plan::{Plan, RequestHead, Target},
        rows::Row,
    },
    engine::tally::{Evidence, Tally},
    pace::{Agenda, Free, Pick, Place, Roots},
    wire::{
        request::HeadTemplate,
        response::{Body, Framing, HeadStep, parse_head},
        scan::Scan,
    },
};

type Failure = Box<dyn std::error::Error>;
type Cell = fn(u64) -> Result<(), Failure>;

/// Name, and what is done so often as is asked.
const CELLS: &[(&str, Cell)] = &[
    ("head_write", |n| head_write(n, false)),
    ("head_write_digest", |n| head_write(n, true)),
    ("head_parse", head_parse),
    ("response_with_length", response_with_length),
    ("chunk_with_event", chunk_with_event),
    ("event_chat", |n| event(n, CHAT)),
    ("event_completions", |n| event(n, COMPLETIONS)),
    ("event_messages", |n| event(n, MESSAGES)),
    ("event_responses", |n| event(n, RESPONSES)),
    ("row_counted", |n| row_counted(n, false)),
    ("row_of_a_stream_counted", |n| row_counted(n, true)),
    ("pick_closed", |n| picked(n, &["-c", "64"])),
    ("pick_constant", |n| picked(n, &["-R", "100k"])),
    ("pick_poisson", |n| picked(n, &["-R", "100k", "--arrival", "poisson"])),
];

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Tue, 15 Nov 1994 08:12:31 GMT\r\nserver: uvicorn\r\ncontent-length: 311\r\ncontent-type: application/json\r\n\r\n";
const CHAT: &[u8] = b"data: {\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1722873600,\"model\":\"some-model-8b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const COMPLETIONS: &[u8] = b"data: {\"id\":\"cmpl-8f14e45fceea167a\",\"object\":\"text_completion\",\"created\":1722873600,\"model\":\"some-model-8b\",\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const MESSAGES: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" a few words of the answer\"}}\n\n";
const RESPONSES: &[u8] = b"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":12,\"item_id\":\"msg_8f14e45fceea167a\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\"}\n\n";

fn main() -> Result<(), Failure> {
    // `cargo bench` and `cargo test` append flags of their own, which no cell is called.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [name, count] = args.as_slice() else {
        let names: Vec<&str> = CELLS.iter().map(|(name, _)| *name).collect();
        return say(&names.join("\n"));
    };
    let cell = CELLS.iter().find(|(known, _)| known == name).ok_or_else(|| format!("no cell {name}"))?;
    cell.1(count.parse()?)
}

fn say(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn head_write(n: u64, body_digest: bool) -> Result<(), Failure> {
    let target = Target {
        url: "http://127.0.0.1:8000".into(),
        host: "127.0.0.1:8000".into(),
        path: "/v1/chat/completions".into(),
        addresses: Vec::new(),
        tls: false,
        local: true,
    };
    let head = RequestHead { body_digest, ..RequestHead::default() };
    let template = HeadTemplate::new(&target, &head, true, None)?;
    let mut out = vec![0; template.bytes_max()];
    for i in 0..n {
        black_box(template.write(
            &mut out,
            black_box(1_000 + (i & 4095)),
            black_box(RecordId(77)),
            black_box(0xfeed_beef),
        ));
    }
    Ok(())
}

fn head_parse(n: u64) -> Result<(), Failure> {
    for _ in 0..n {
        black_box(parse_head(black_box(HEAD), false)?);
    }
    Ok(())
}

/// A whole small response in one read: what most answers are.
fn response_with_length(n: u64) -> Result<(), Failure> {
    let response = [HEAD, &[b'x'; 311]].concat();
    for _ in 0..n {
        let bytes = black_box(response.as_slice());
        let HeadStep::Final(head) = parse_head(bytes, false)? else { return Err("the head is not whole".into()) };
        let fed = Body::new(head.framing).feed(&bytes[head.consumed..], |part| _ = black_box(part))?;
        assert!(fed.done);
    }
    Ok(())
}

fn chunk_with_event(n: u64) -> Result<(), Failure> {
    let chunk = [format!("{:x}\r\n", CHAT.len()).as_bytes(), CHAT, b"\r\n"].concat();
    let (mut body, mut scan) = (Body::new(Framing::Chunked), Scan::stream());
    for _ in 0..n {
        black_box(body.feed(black_box(&chunk), |part| _ = black_box(scan.feed(part)))?);
    }
    Ok(())
}

fn event(n: u64, event: &[u8]) -> Result<(), Failure> {
    let mut scan = Scan::stream();
    let mut content = 0;
    for _ in 0..n {
        content += u64::from(scan.feed(black_box(event)).content_events);
    }
    assert!(content == n, "an event without content was counted");
    Ok(())
}

/// One request that has succeeded: its series, buckets and timeline.
fn row_counted(n: u64, stream: bool) -> Result<(), Failure> {
    let mut tally = Tally::new(WorkerId(0), None, Vec::new());
    tally.measure_from(Nanos(0));
    for i in 0..n {
        let due = i * 5_000;
        // A spread of latencies, the same in every run.
        let latency = 50_000 + (i.wrapping_mul(0x9e37_79b9) & 0xf_ffff);
        let at = |ns: u64| Nanos(due + ns);
        let mut row = Row { due: at(0), start: at(700), sent: at(9_000), status: 200, ..Row::EMPTY };
        (row.first_byte, row.done) = (at(latency), at(latency + 2_000));
        if stream {
            (row.first_token, row.first_output, row.second_token) = (row.first_byte, row.first_byte, at(latency + 500));
            (row.last_token, row.content_events, row.output_tokens) = (at(latency + 1_500), 64, 64);
        }
        tally.count(black_box(&row), 1024, Outcome::Succeeded, Evidence::default());
    }
    assert!(tally.result.buckets.succeeded == n, "a row was not counted");
    Ok(())
}

/// What is due next, as a worker asks, with every slot free.
fn picked(n: u64, shape: &[&str]) -> Result<(), Failure> {
    let plan = plan_of(shape)?;
    let place = |_| Place { inside: true, predecessors: 0, due_ns: None };
    let roots = Roots::new(20_000, place, false, &plan.shape)?;
    let mut agenda = Agenda::new(&plan, Arc::new(roots), None, 0, 1, 64)?;
    let (mut now_ns, mut started) = (0, 0);
    while started < n {
        match agenda.pick(black_box(now_ns), Free::all(true)) {
            Pick::Start(work) => started += u64::from(black_box(work).unit < u64::MAX),
            Pick::At(due_ns) => now_ns = due_ns,
            Pick::Wait | Pick::Done => return Err("the agenda ended early".into()),
        }
    }
    Ok(())
}

/// The plan behind flags, made as a run makes it.
fn plan_of(shape: &[&str]) -> Result<Plan, Failure> {
    let mut args = vec!["ringload", "run", "http://127.0.0.1:1/", "-b", "{}", "-d", "1h", "-t", "1"];
    args.extend(shape);
    let Command::Run(flags) = Cli::try_parse_from(args)?.command else { return Err("no run".into()) };
    let targets = plan::targets(&plan::urls(&flags)?, &flags)?;
    let placement = Placement { workers: vec![None], server: Vec::new(), warnings: Vec::new() };
    Ok(plan::plan(&flags, None, targets, Sent::Inline, &placement)?)
}
