//! What is stored once is sent as if it were stored as often as it is there.

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

/// Text that nothing else shares.
fn text(seed: u64, bytes: usize) -> String {
    (0..bytes as u64).map(|k| (xxh3_64(&(seed << 32 | k).to_le_bytes()) % 26 + 97) as u8 as char).collect()
}

/// Bodies of sessions that repeat their history each turn, all with one system prompt, the sessions interleaved.
fn agents(sessions: usize, turns: usize, system: usize, turn: usize) -> Vec<Vec<u8>> {
    let mut history: Vec<String> = (0..sessions)
        .map(|_| format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{}"}}"#, text(1, system)))
        .collect();
    let mut bodies = Vec::new();
    for t in 0..turns {
        for (s, history) in history.iter_mut().enumerate() {
            let seed = (100 + s * 1000 + t) as u64;
            history.push_str(&format!(r#",{{"role":"user","content":"{}"}}"#, text(seed, turn)));
            bodies.push(format!(r#"{history}],"stream":true,"max_tokens":{}}}"#, 100 + t).into_bytes());
        }
    }
    bodies
}

fn of(b: &Bench, path: &Path, dedup: Dedup, threads: usize) -> Opened {
    let cache = Some(b.path(&format!("{dedup:?}{threads}")));
    open_with(&BuildRequest { dedup, cache, ..b.request(path) }, threads).unwrap()
}

#[test]
fn a_session_that_repeats_its_history_is_stored_once_and_sent_in_few_spans() {
    let b = Bench::new();
    let want = agents(20, 30, 20_000, 4000);
    let path = b.file("d.jsonl", &jsonl(&want));
    let plain = of(&b, &path, Dedup::Off, 2);
    let auto = of(&b, &path, Dedup::Auto, 2);
    assert_eq!(bodies(&plain.view), want);
    assert_eq!(bodies(&auto.view), want);
    let share = auto.view.stored_bytes() as f64 / auto.view.body_bytes_total() as f64;
    assert!(share < 0.10, "{share}");
    assert!(auto.report.spans_max <= 12 && auto.report.spans <= 5 * auto.report.records, "{:?}", auto.report);
    assert_eq!(plain.view.stored_bytes(), plain.view.body_bytes_total());
}

#[test]
fn a_history_that_grows_by_little_is_not_stored_again_in_each_window() {
    let b = Bench::new();
    // Three windows, in each of which a session grows by less than what is worth a span in the middle of a body.
    let want = agents(60, 30, 6000, 2500);
    let auto = of(&b, &b.file("d.jsonl", &jsonl(&want)), Dedup::Auto, 2);
    assert_eq!(bodies(&auto.view), want);
    let share = auto.view.stored_bytes() as f64 / auto.view.body_bytes_total() as f64;
    assert!(share < 0.09, "{share}");
}

#[test]
fn sessions_of_a_directory_share_exactly_without_a_search() {
    let b = Bench::new();
    fs::create_dir(b.path("dir")).unwrap();
    let want = agents(5, 30, 6000, 4000);
    for s in 0..5 {
        let turns: Vec<_> = want.iter().skip(s).step_by(5).cloned().collect();
        b.file(&format!("dir/{s}.jsonl"), &jsonl(&turns));
    }
    let exact = of(&b, &b.path("dir"), Dedup::Exact, 2);
    let sorted: Vec<_> = (0..5).flat_map(|s| want.iter().skip(s).step_by(5).cloned()).collect();
    assert_eq!(bodies(&exact.view), sorted);
    let share = exact.view.stored_bytes() as f64 / exact.view.body_bytes_total() as f64;
    assert!(share < 0.10, "{share}");
    assert!(exact.report.spans_max <= 3, "{:?}", exact.report);
}

#[test]
fn the_same_files_for_any_number_of_threads() {
    let b = Bench::new();
    // More than one window, with equal bodies, histories and text of their own.
    let mut all = agents(40, 20, 9000, 2500);
    all.extend(lines(3000, 3000));
    all.extend(all[..500].to_vec());
    let path = b.file("d.jsonl", &jsonl(&all));
    for dedup in [Dedup::Auto, Dedup::Off] {
        let files: Vec<[Vec<u8>; 2]> = [1, 2, 7]
            .map(|threads| {
                let entry = of(&b, &path, dedup, threads).entry.unwrap();
                ["dataset.dat", "index.dat"].map(|name| fs::read(entry.join(name)).unwrap())
            })
            .into();
        assert!(files.iter().all(|f| *f == files[0]), "{dedup:?}");
    }
    assert_eq!(bodies(&of(&b, &path, Dedup::Auto, 2).view), all);
}

#[test]
fn bodies_over_many_windows_share_with_what_is_on_the_disk() {
    let b = Bench::new();
    let mut all = lines(30, 200_000);
    let filler = lines(18, 4 << 20);
    all.extend(filler);
    // Equal ones, and ones that share their middle, after two windows.
    all.extend(all[..10].to_vec());
    let moved = all[10..20].iter().map(|body| [b"{\"x\":1,", &body[1..]].concat());
    all.extend(moved.collect::<Vec<_>>());
    let opened = of(&b, &b.file("d.jsonl", &jsonl(&all)), Dedup::Auto, 2);
    assert_eq!(bodies(&opened.view), all);
    let alone: u64 = all[..48].iter().map(|body| body.len() as u64).sum();
    assert!(opened.view.stored_bytes() < alone + 300_000, "{} of {alone}", opened.view.stored_bytes());
    assert_eq!(opened.report.equal, 10);
}

#[test]
fn no_shared_stretch_is_too_short_to_be_worth_its_span() {
    let b = Bench::new();
    let opened = of(&b, &b.file("d.jsonl", &jsonl(&agents(10, 12, 30_000, 700))), Dedup::Auto, 2);
    for record in opened.view.ids() {
        let spans = opened.view.spans(record);
        // All but the last and the first are at least as long as copying is cheap for.
        let inner = spans.len().saturating_sub(1);
        assert!(spans[..inner].iter().skip(1).all(|s| s.bytes >= 1024), "{record}: {spans:?}");
        assert!(spans.windows(2).all(|w| w[0].end() != w[1].offset), "neighbours are one span");
        assert!(spans.len() <= 48);
    }
}

#[test]
fn bodies_that_differ_in_one_byte_are_not_taken_for_equal() {
    let b = Bench::new();
    let base = lines(1, 100_000).remove(0);
    let all: Vec<Vec<u8>> = (0..60)
        .map(|k| {
            let mut body = base.clone();
            body[200 + k * 1600] ^= 1;
            body
        })
        .collect();
    let opened = of(&b, &b.file("d.jsonl", &jsonl(&all)), Dedup::Auto, 2);
    assert_eq!(bodies(&opened.view), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_mix_of_shared_stretches_comes_back_byte_for_byte(
        plan in prop::collection::vec(prop::collection::vec((0u64..6, 0usize..60_000, 0usize..30_000), 0..6), 1..40),
        threads in 1usize..4,
    ) {
        let b = Bench::new();
        let pool: Vec<String> = (0..6).map(|seed| text(seed, 60_000)).collect();
        let want: Vec<Vec<u8>> = plan
            .iter()
            .map(|parts| {
                let mut body = String::from("{\"a\":\"");
                for &(which, start, bytes) in parts {
                    body.push_str(&pool[which as usize][start..(start + bytes).min(60_000)]);
                }
                body.push_str("\"}");
                body.into_bytes()
            })
            .collect();
        let path = b.file("d.jsonl", &jsonl(&want));
        for dedup in [Dedup::Auto, Dedup::Exact, Dedup::Chunk, Dedup::Off] {
            let opened = of(&b, &path, dedup, threads);
            prop_assert_eq!(bodies(&opened.view), want.clone());
            prop_assert!(opened.view.stored_bytes() <= opened.view.body_bytes_total());
        }
    }
}
