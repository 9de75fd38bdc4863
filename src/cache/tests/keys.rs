//! The list of what AIPerf's cache key and protocol missed, item by item, and that none of it can be here.
//! (`1` to `14` are historic, `a` to `n` present in its 0.13.) Elsewhere: g, h and i, damage that was not seen, not healed, or
//! ended every run, in `faults::any_damage_to_an_entry_is_a_miss_that_heals` and `faults::a_body_byte_that_is_edited...`; m, no
//! eviction, in `faults::gc_...`; 12, an interrupt while hashing, in `inputs::an_interrupt_...`; 13, a lock that is not had, in
//! `faults::a_lock_that_is_not_had_in_time_means_a_private_build`. There is no hub and no broadcast here, so no n and no 14.

use std::os::unix::fs::FileExt;

use super::{super::open::spec_of, *};
use crate::{
    cache::body::{self, Asked, Multipliers},
    formats::Format,
    wire::api::Endpoint,
};

fn raw(b: &Bench) -> BuildRequest {
    b.request(&b.file("d.jsonl", &jsonl(&lines(20, 500))))
}

fn key_of(request: &BuildRequest, format: Format) -> Key {
    let shaping = body::resolve(&request.shaping, format, &request.reading).unwrap().map(|(shaping, _)| shaping);
    spec_of(request, format, Digest([1; 32]), shaping).key()
}

/// Every setting of the making of bodies, each changed by itself.
fn shapings() -> Vec<Asked> {
    let base = Asked { models: vec!["m".into()], ..Asked::default() };
    let multiplied = |multipliers| Asked { multipliers, ..base.clone() };
    let times = Multipliers::default();
    let template = |text: &str| Asked { endpoint: Endpoint::Template, template: Some(text.into()), ..base.clone() };
    vec![
        base.clone(),
        Asked { endpoint: Endpoint::Completions, ..base.clone() },
        Asked { models: vec!["m".into(), "n".into()], ..base.clone() },
        Asked { models: vec!["n".into(), "m".into()], ..base.clone() },
        Asked { streaming: true, ..base.clone() },
        Asked { legacy_max_tokens: true, ..base.clone() },
        Asked { per_chunk_usage: true, ..base.clone() },
        Asked { extra_inputs: vec!["a:1".into()], ..base.clone() },
        Asked { endpoint: Endpoint::Responses, ..base.clone() },
        Asked { endpoint: Endpoint::Responses, server_token_count: true, ..base.clone() },
        template("{\"a\": {{ text|tojson }} }"),
        template("{\"b\": {{ text|tojson }} }"),
        Asked { system_prompt: Some("x".into()), ..base.clone() },
        Asked { system_prompt: Some("y".into()), ..base.clone() },
        Asked { output_tokens: Some(9), ..base.clone() },
        Asked { tokenizer: Some("approx:3".into()), ..base.clone() },
        Asked { seed: 1, ..base.clone() },
        Asked { block_size: Some(16), ..base.clone() },
        Asked { global_blocks: true, ..base.clone() },
        multiplied(Multipliers { prefix_len: 2.0, ..times.clone() }),
        multiplied(Multipliers { prompt_len: 2.0, ..times.clone() }),
        multiplied(Multipliers { output_len: 2.0, ..times.clone() }),
        multiplied(Multipliers { prefix_roots: 2, ..times.clone() }),
        multiplied(Multipliers { max_isl: Some(5), ..times.clone() }),
        multiplied(Multipliers { max_osl: Some(5), ..times }),
    ]
}

#[test]
fn files_that_shape_bodies_are_known_by_their_content() {
    // e: the tokenizer was in the key by its name.
    let b = Bench::new();
    let corpus = |text: &str, name: &str| {
        let shaping = Asked { corpus: Some(b.file(name, text.as_bytes())), ..Asked::default() };
        key_of(&BuildRequest { shaping, ..raw(&b) }, Format::MooncakeTrace)
    };
    let (one, same, other) = (corpus("a text", "1"), corpus("a text", "2"), corpus("another", "1"));
    assert!(one == same && one != other);
}

#[test]
fn settings_that_shape_bodies_are_in_the_key_of_formats_that_are_shaped() {
    // 1, 3, 4, 5, 7, 8, 9, a, b, c, d, j: a setting that reached the bytes and not the key.
    let b = Bench::new();
    let request = raw(&b);
    let keys: std::collections::HashSet<_> = shapings()
        .into_iter()
        .map(|shaping| key_of(&BuildRequest { shaping, ..request.clone() }, Format::MooncakeTrace))
        .collect();
    assert_eq!(keys.len(), shapings().len());
}

#[test]
fn settings_of_the_reading_are_in_the_key_of_the_formats_that_look_at_them_and_of_no_other() {
    // The rest of 1, 4 and k: which records there are, and from which draws.
    let b = Bench::new();
    let base = Reading::default();
    let readings = [
        (Reading { limit: Some(5), ..base.clone() }, None),
        (Reading { skip_bad: true, ..base.clone() }, None),
        (Reading { verbatim_lines: true, ..base.clone() }, Some(Format::RawPayload)),
        (Reading { reformat: true, ..base.clone() }, Some(Format::SagemakerDataCapture)),
        (Reading { synthesized_answers: true, ..base.clone() }, Some(Format::MultiTurn)),
        (Reading { entries: Some(5), ..base.clone() }, Some(Format::RandomPool)),
        (Reading { draw_seed: 5, ..base.clone() }, Some(Format::RandomPool)),
    ];
    let formats = [
        Format::RawPayload,
        Format::SagemakerDataCapture,
        Format::MultiTurn,
        Format::RandomPool,
        Format::MooncakeTrace,
    ];
    for format in formats {
        let key = |reading: &Reading| key_of(&BuildRequest { reading: reading.clone(), ..raw(&b) }, format);
        for (reading, only) in &readings {
            let looks = only.is_none_or(|only| only == format);
            assert_eq!(key(reading) != key(&base), looks, "{format:?} {reading:?}");
        }
    }
}

#[test]
fn settings_that_shape_no_byte_are_in_no_key() {
    // k: a raw dataset has one key, whatever its models, endpoint and name.
    let b = Bench::new();
    let request = raw(&b);
    for format in [Format::RawPayload, Format::InputsJson] {
        let keys: std::collections::HashSet<_> = shapings()
            .into_iter()
            .map(|shaping| key_of(&BuildRequest { shaping, ..request.clone() }, format))
            .collect();
        assert_eq!(keys.len(), 1, "{format:?}");
    }
    let first = open(&request).unwrap();
    let other = b.path("another name.txt");
    fs::copy(b.path("d.jsonl"), &other).unwrap();
    let shaping = shapings().remove(2);
    let again = open(&BuildRequest { shaping, ..b.request(&other) }).unwrap();
    assert_eq!((again.state, again.key), (CacheState::Hit, first.key));
}

#[test]
fn datasets_of_any_content_have_keys_of_their_own() {
    // 6: inline records collided, since nothing of them was hashed.
    let b = Bench::new();
    let mut keys = std::collections::HashSet::new();
    for k in 0..20 {
        keys.insert(open(&b.request(&b.file("d.jsonl", format!("{{\"k\":{k}}}\n").as_bytes()))).unwrap().key);
    }
    assert_eq!(keys.len(), 20);
}

#[test]
fn the_name_of_a_pool_is_in_the_key_where_it_reaches_the_body() {
    // k, the other way round: renaming must hit, but not where the name is what a ranking calls its texts.
    let b = Bench::new();
    let of = |name: &str| {
        let path = b.file(name, b"{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
        let shaping = Asked { endpoint: Endpoint::CohereRankings, ..Asked::default() };
        let reading = Reading { entries: Some(5), ..Reading::default() };
        open(&BuildRequest { format: Some(Format::RandomPool), shaping, reading, ..b.request(&path) })
    };
    fs::create_dir(b.path("other")).unwrap();
    let two = of("passages.jsonl");
    let (one, same) = (of("query.jsonl"), of("other/query.jsonl"));
    match (one, same, two) {
        (Ok(one), Ok(same), Ok(two)) => {
            assert_eq!((one.key, same.state), (same.key, CacheState::Hit));
            assert_ne!(one.key, two.key);
            assert_ne!(bodies(&one.view), bodies(&two.view));
        }
        // A ranking needs both names: then the one that is refused must stay so, whatever is in the cache.
        (one, _, two) => assert_ne!(one.is_ok(), two.is_ok()),
    }
}

#[test]
fn another_layout_or_format_is_another_key() {
    // 2, 10: the builder changed under the same key. Its behaviour has a number, and that is in the key and the manifest.
    let spec = Spec::verbatim(Digest([1; 32]), "raw_payload");
    assert_ne!(spec.key(), Spec { layout: layout::VERSION + 1, ..spec.clone() }.key());
    assert_ne!(spec.key(), Spec { format: "inputs_json".into(), ..spec }.key());
}

#[test]
fn a_manifest_with_fields_that_it_should_not_have_is_none() {
    // 11: side data gained fields with defaults, and old entries silently switched a feature off.
    let b = Bench::new();
    let request = raw(&b);
    let entry = open(&request).unwrap().entry.unwrap().join("manifest.json");
    for (from, to) in [("\"skipped\": 0,", ""), ("\"skipped\": 0,", "\"skipped\": 0, \"news\": 1,")] {
        let text = fs::read_to_string(&entry).unwrap();
        assert!(text.contains(from));
        fs::write(&entry, text.replace(from, to)).unwrap();
        assert_eq!(open(&request).unwrap().state, CacheState::Miss);
        assert_eq!(open(&request).unwrap().state, CacheState::Hit);
    }
}

#[test]
fn a_dataset_that_changes_between_hashing_and_parsing_poisons_no_key() {
    // f: the file was hashed first and read again later.
    let b = Bench::new();
    let all = lines(5000, 3000);
    let path = b.file("d.jsonl", &jsonl(&all));
    let tell = |event: Event| {
        if matches!(event, Event::Progress { step: "reading", .. }) {
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"{\"Model", 0).unwrap();
        }
    };
    let stop = AtomicBool::new(false);
    let changed = open_or_build(&b.request(&path), &How::new(1, &stop, &tell));
    if let Ok(opened) = changed {
        // The edit came before the byte was hashed: then it is what was hashed that is in the entry.
        assert!(bodies(&opened.view)[0].starts_with(b"{\"Model"));
    }
    fs::write(&path, jsonl(&all)).unwrap();
    assert_eq!(bodies(&open(&b.request(&path)).unwrap().view), all);
}

#[test]
fn compressed_and_plain_entries_are_one() {
    // l: whichever came first made the other miss for ever.
    let b = Bench::new();
    let plain = raw(&b);
    let packed = BuildRequest { compress: true, ..plain.clone() };
    let states: Vec<_> = [&packed, &plain, &packed, &plain].map(|r| open(r).unwrap().state).into();
    assert_eq!(states, [CacheState::Miss, CacheState::Hit, CacheState::Hit, CacheState::Hit]);
    assert_eq!(bodies(&open(&plain).unwrap().view), lines(20, 500));
    let entry = open(&packed).unwrap().entry.unwrap();
    let mut names = tree(&entry);
    names.retain(|name| name.contains("dat"));
    assert_eq!(names, ["dataset.dat.zst", "index.dat"]);
    assert!(
        store::verify(&b.cache(), &[], &How::new(1, &AtomicBool::new(false), &|_| ())).unwrap()[0].problem.is_none()
    );
}

#[test]
fn hits_and_misses_alike_have_no_random_part() {
    // j: without a seed the first random outcome was frozen. Nothing here is drawn.
    let (one, two) = (Bench::new(), Bench::new());
    let (a, b) = (open(&raw(&one)).unwrap(), open(&raw(&two)).unwrap());
    let files = |o: &Opened| ["dataset.dat", "index.dat"].map(|n| fs::read(o.entry.as_ref().unwrap().join(n)).unwrap());
    assert_eq!((a.key, files(&a)), (b.key, files(&b)));
}
