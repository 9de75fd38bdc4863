//! What the wire layer costs: a head written, a head read, chunks followed, events looked into, and all of it beside a
//! plain copy of the same bytes. `cargo bench --bench wire`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringload::{
    data::{
        RecordId,
        plan::{RequestHead, Target},
    },
    wire::{
        request::HeadTemplate,
        response::{Body, Framing, parse_head},
        scan::Scan,
    },
};

const READ_BYTES: usize = 4096;

fn chat_event() -> Vec<u8> {
    b"data: {\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1722873600,\"model\":\"some-model-8b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n".to_vec()
}

fn completions_event() -> Vec<u8> {
    b"data: {\"id\":\"cmpl-8f14e45fceea167a\",\"object\":\"text_completion\",\"created\":1722873600,\"model\":\"some-model-8b\",\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":null}]}\n\n".to_vec()
}

fn messages_event() -> Vec<u8> {
    b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" a few words of the answer\"}}\n\n".to_vec()
}

fn responses_event() -> Vec<u8> {
    b"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":12,\"item_id\":\"msg_8f14e45fceea167a\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\"}\n\n".to_vec()
}

fn blanks_event() -> Vec<u8> {
    b"data: {\"id\": \"chatcmpl-8f14e45fceea167a\", \"object\": \"chat.completion.chunk\", \"created\": 1722873600, \"model\": \"some-model-8b\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \" token\"}, \"finish_reason\": null}]}\n\n".to_vec()
}

fn heads(c: &mut Criterion) {
    let target = Target {
        url: "http://127.0.0.1:8000".into(),
        host: "127.0.0.1:8000".into(),
        path: "/v1/chat/completions".into(),
        addresses: Vec::new(),
        tls: false,
        local: true,
    };
    let mut group = c.benchmark_group("head");
    for (name, body_digest) in [("write", false), ("write_digest", true)] {
        let head = RequestHead { body_digest, ..RequestHead::default() };
        let Ok(template) = HeadTemplate::new(&target, &head, true, None) else { return };
        let mut out = vec![0; template.bytes_max()];
        group.bench_function(name, |b| {
            b.iter(|| template.write(&mut out, black_box(1234), black_box(RecordId(77)), black_box(0xfeed_beef)));
        });
    }
    let json = b"HTTP/1.1 200 OK\r\ndate: Tue, 15 Nov 1994 08:12:31 GMT\r\nserver: uvicorn\r\ncontent-length: 1234\r\ncontent-type: application/json\r\n\r\n";
    group.bench_function("parse", |b| b.iter(|| parse_head(black_box(json), false)));
    group.finish();
}

fn chunks(c: &mut Criterion) {
    let mut group = c.benchmark_group("chunked");
    let event = chat_event();
    let chunk = [format!("{:x}\r\n", event.len()).as_bytes(), &event, b"\r\n"].concat();
    let mut body = Body::new(Framing::Chunked);
    group.throughput(Throughput::Elements(1));
    group.bench_function("one_event_chunk", |b| {
        b.iter(|| body.feed(black_box(&chunk), |part| _ = black_box(part)));
    });
    group.finish();
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("event");
    for (name, event) in [
        ("chat", chat_event()),
        ("chat_blanks", blanks_event()),
        ("completions", completions_event()),
        ("messages", messages_event()),
        ("responses", responses_event()),
    ] {
        let mut scan = Scan::stream();
        group.throughput(Throughput::Bytes(event.len() as u64));
        group.bench_function(name, |b| b.iter(|| scan.feed(black_box(&event))));
    }
    let event = chat_event();
    let chunk = [format!("{:x}\r\n", event.len()).as_bytes(), &event, b"\r\n"].concat();
    let (mut body, mut scan) = (Body::new(Framing::Chunked), Scan::stream());
    group.bench_function("chat_in_a_chunk", |b| {
        b.iter(|| body.feed(black_box(&chunk), |part| _ = black_box(scan.feed(part))));
    });
    group.finish();
}

/// The same bytes copied and scanned: many small events, and one of 4 MiB. Read by read, as they come from a socket.
fn beside_a_copy(c: &mut Criterion) {
    let small: Vec<u8> = chat_event().repeat((1 << 20) / chat_event().len());
    let large = [
        &b"data: {\"choices\":[{\"delta\":{\"content\":\""[..],
        &b"some text without an end ".repeat((4 << 20) / 25),
        b"\"}}]}\n\n",
    ]
    .concat();
    for (name, stream) in [("small_events", small), ("event_of_4_mib", large)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(stream.len() as u64));
        let mut buffer = vec![0; READ_BYTES];
        group.bench_function("copied", |b| {
            b.iter(|| {
                for read in stream.chunks(READ_BYTES) {
                    buffer[..read.len()].copy_from_slice(read);
                    black_box(&buffer);
                }
            });
        });
        let mut scan = Scan::stream();
        group.bench_function("scanned", |b| {
            b.iter(|| stream.chunks(READ_BYTES).map(|read| scan.feed(black_box(read)).content_events).sum::<u32>());
        });
        group.finish();
    }
}

criterion_group!(benches, heads, chunks, events, beside_a_copy);
criterion_main!(benches);
