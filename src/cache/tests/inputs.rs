//! Inputs of every kind: what is hashed is what is parsed, and the digest knows content only.

use std::{
    io::Write,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use super::*;
use crate::cache::{batch::Batch, input::Input, memo::Memo};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn packed_inputs_of_any_name_and_several_members_give_the_same_bodies() {
    let b = Bench::new();
    let want = lines(300, 9000);
    let text = jsonl(&want);
    let (one, two) = text.split_at(1_234_567);
    let members = [gzip(one), gzip(two)].concat();
    let frames = [zstd::encode_all(one, 1).unwrap(), zstd::encode_all(two, 3).unwrap()].concat();
    let plain = open(&b.request(&b.file("plain.gz", &text))).unwrap();
    for (name, bytes) in [("m.jsonl", members), ("f.jsonl.gz", frames)] {
        let opened = open(&b.request(&b.file(name, &bytes))).unwrap();
        assert_eq!(bodies(&opened.view), want, "{name}");
        assert_ne!(opened.key, plain.key, "the digest is of the file as it is");
    }
    assert_eq!(bodies(&plain.view), want);
}

#[test]
fn a_broken_or_unknown_packing_is_said() {
    let b = Bench::new();
    let mut broken = gzip(&jsonl(&lines(50, 9000)));
    broken.truncate(broken.len() / 2);
    let error = open(&b.request(&b.file("b.jsonl", &broken))).unwrap_err().to_string();
    assert!(error.contains("b.jsonl") && error.contains("gzip"), "{error}");
    let error = open(&b.request(&b.file("x.jsonl", b"\xfd7zXZ\0abcdefgh"))).unwrap_err().to_string();
    assert!(error.contains("xz data"), "{error}");
    assert_eq!(rubbish(&b.cache()), Vec::<String>::new());
}

#[test]
fn lines_end_in_many_ways_and_a_piece_may_end_anywhere() {
    let b = Bench::new();
    // Lines around the size of a piece, so that ends fall everywhere, and one far longer.
    let mut want = lines(40, 200_000);
    want.extend(lines(1, 9 << 20));
    want.extend(lines(3000, 600));
    let mut text = b"\xef\xbb\xbf".to_vec();
    for (k, line) in want.iter().enumerate() {
        text.extend_from_slice(line);
        text.extend_from_slice([&b"\n"[..], b"\r\n", b"\n\n  \n"][k % 3]);
    }
    text.truncate(text.len() - 2);
    for threads in [1, 3] {
        let request = BuildRequest { cache: Some(b.path(&threads.to_string())), ..b.request(&b.file("d", &text)) };
        assert_eq!(bodies(&open_with(&request, threads).unwrap().view), want);
    }
    let packed = b.request(&b.file("d.gz", &gzip(&text)));
    assert_eq!(bodies(&open(&packed).unwrap().view), want);
}

#[test]
fn a_bad_line_is_named_by_its_number_wherever_pieces_end() {
    let b = Bench::new();
    let mut all = lines(4000, 1500);
    all[3456] = b"{\"a\":".to_vec();
    let text = jsonl(&all);
    for bytes in [text.clone(), gzip(&text)] {
        let error = open(&b.request(&b.file("d.jsonl", &bytes))).unwrap_err().to_string();
        assert!(error.contains("d.jsonl:3457:"), "{error}");
    }
}

#[test]
fn the_first_ten_bad_lines_are_shown_in_order_and_all_are_counted() {
    let b = Bench::new();
    let mut all = lines(4000, 1500);
    (0..4000).step_by(100).for_each(|k| all[k] = b"{]".to_vec());
    let error = open(&b.request(&b.file("d.jsonl", &jsonl(&all)))).unwrap_err();
    let Error::BadRecords { first, count } = error else { panic!("{error}") };
    assert_eq!(count, 40);
    assert_eq!(
        first.iter().map(|(place, _)| place.line).collect::<Vec<_>>(),
        (0..10).map(|k| 1 + 100 * k).collect::<Vec<_>>()
    );
}

#[test]
fn a_limit_takes_the_first_records_and_what_is_behind_them_is_not_judged() {
    let b = Bench::new();
    let mut all = lines(3000, 1500);
    all[2000] = b"{]".to_vec();
    let request = b.request(&b.file("d.jsonl", &jsonl(&all)));
    let limited = |limit| {
        let reading = Reading { limit: Some(limit), ..Reading::default() };
        open(&BuildRequest { reading, ..request.clone() })
    };
    assert_eq!(bodies(&limited(2000).unwrap().view), all[..2000]);
    assert_eq!(limited(1).unwrap().view.records(), 1);
    assert!(limited(2001).is_err());
}

#[test]
fn a_directory_is_a_session_a_file_and_its_names_are_part_of_its_digest() {
    let b = Bench::new();
    fs::create_dir(b.path("dir")).unwrap();
    b.file("dir/b.jsonl", b"{\"f\":\"b\",\"k\":0}\n{\"f\":\"b\",\"k\":1}\n");
    b.file("dir/a.x.jsonl.gz", &gzip(b"{\"f\":\"a\",\"k\":0}\n{\"f\":\"a\",\"k\":1}"));
    b.file("dir/notes.txt", b"no dataset");
    let opened = open(&b.request(&b.path("dir"))).unwrap();
    let view = &opened.view;
    let text: Vec<_> = bodies(view).into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    assert_eq!(text[0], "{\"f\":\"a\",\"k\":0}");
    assert_eq!((view.session_name(0), view.session_name(1), view.sessions()), ("a.x".into(), "b".into(), 2));
    assert_eq!(view.predecessors(RecordId(3)), [2]);
    assert_eq!((view.turn(RecordId(1)), view.turn(RecordId(2))), (1, 0));
    fs::rename(b.path("dir"), b.path("other")).unwrap();
    assert_eq!(open(&b.request(&b.path("other"))).unwrap().state, CacheState::Hit);
    fs::rename(b.path("other/b.jsonl"), b.path("other/c.jsonl")).unwrap();
    assert_eq!(open(&b.request(&b.path("other"))).unwrap().state, CacheState::Miss);
    fs::create_dir(b.path("empty")).unwrap();
    assert!(open(&b.request(&b.path("empty"))).unwrap_err().to_string().contains("no dataset files"));
}

#[test]
fn several_files_are_read_in_their_order() {
    let b = Bench::new();
    let (one, two) = (b.file("2.jsonl", b"{\"k\":1}\n"), b.file("1.jsonl", b"{\"k\":2}"));
    let of = |paths: [&PathBuf; 2]| {
        let inputs = paths.map(|p| Origin::Path(p.clone())).to_vec();
        open(&BuildRequest { inputs, ..b.request(&one) }).unwrap()
    };
    let opened = of([&one, &two]);
    assert_eq!(bodies(&opened.view), [b"{\"k\":1}".to_vec(), b"{\"k\":2}".to_vec()]);
    assert_ne!(of([&two, &one]).key, opened.key);
}

#[test]
fn an_edit_that_keeps_size_and_time_is_another_key() {
    let b = Bench::new();
    let all = lines(300, 9000);
    let path = b.file("d.jsonl", &jsonl(&all));
    let old = SystemTime::now() - Duration::from_secs(1000);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(old).unwrap();
    let first = open(&b.request(&path)).unwrap();
    file.write_all_at(b"{\"Model", 0).unwrap();
    file.set_modified(old).unwrap();
    let second = open(&b.request(&path)).unwrap();
    assert_eq!(second.state, CacheState::Miss);
    assert_ne!(first.key, second.key);
    assert!(bodies(&second.view)[0].starts_with(b"{\"Model"));
}

#[test]
fn a_wrong_memo_is_found_out_before_an_entry_is_made_of_it() {
    let b = Bench::new();
    let path = b.file("d.jsonl", &jsonl(&lines(300, 9000)));
    let stop = AtomicBool::new(false);
    let how = How::new(2, &stop, &|_| ());
    let input = || Input::open(&[Origin::Path(path.clone())], b.folder.path(), &how).unwrap();
    let digest = input().digest(&Memo::none(), &how).unwrap();
    assert!(input().make_ready(Digest([9; 32]), &how).is_err());
    assert!(input().make_ready(digest, &how).is_ok());
}

#[test]
fn a_digest_is_the_same_for_any_number_of_threads_and_other_for_any_byte() {
    let b = Bench::new();
    let text = jsonl(&lines(400, 9000));
    static STOP: AtomicBool = AtomicBool::new(false);
    let of = |bytes: &[u8], threads: usize| {
        let how = How::new(threads, &STOP, &|_| ());
        let mut input = Input::open(&[Origin::Path(b.file("d", bytes))], b.folder.path(), &how).unwrap();
        input.digest(&Memo::none(), &how).unwrap()
    };
    let digest = of(&text, 1);
    assert_eq!((of(&text, 2), of(&text, 5)), (digest, digest));
    for at in [0, 1 << 20, text.len() - 1] {
        let mut other = text.clone();
        other[at] ^= 1;
        assert_ne!(of(&other, 2), digest, "{at}");
    }
    assert_ne!(of(&text[..text.len() - 1], 2), digest);
    assert_ne!(of(b"", 1), of(b"\0", 1));
}

/// Builds while `change` is done to the file, after the digest was taken and before the parsing has come to its end.
fn build_while(b: &Bench, path: &Path, change: impl Fn() + Sync) -> Result<Opened> {
    let done = Mutex::new(false);
    let tell = |event: Event| {
        let mut done = done.lock().unwrap();
        if let (Event::Progress { step: "building", .. }, false) = (event, *done) {
            *done = true;
            change();
        }
    };
    let stop = AtomicBool::new(false);
    let result = open_or_build(&b.request(path), &How::new(1, &stop, &tell));
    assert!(*done.lock().unwrap(), "it was too fast to be changed");
    result
}

#[test]
fn an_input_that_changes_while_it_is_read_is_an_error_and_no_entry() {
    let b = Bench::new();
    let text = jsonl(&lines(3000, 9000));
    let end = text.len() as u64;
    let path = b.path("d.jsonl");
    let open_file = || fs::File::options().write(true).open(&path).unwrap();
    let changes: [(&str, &(dyn Fn() + Sync)); 4] = [
        ("a byte not yet read", &|| open_file().write_all_at(b"X", end - 100).unwrap()),
        ("a byte already read", &|| open_file().write_all_at(b"X", 10).unwrap()),
        ("cut short", &|| open_file().set_len(end / 2).unwrap()),
        ("grown", &|| open_file().write_all_at(b"{}\n", end).unwrap()),
    ];
    for (what, change) in changes {
        fs::write(&path, &text).unwrap();
        let error = build_while(&b, &path, change).map(|o| o.state).unwrap_err().to_string();
        assert!(error.contains("d.jsonl") && error.contains("changed while it was read"), "{what}: {error}");
        assert_eq!(tree(&b.cache()).iter().filter(|name| name.contains("dat")).count(), 0, "{what}");
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_read_to_its_end() {
    let b = Bench::new();
    let all = lines(3000, 9000);
    let path = b.file("d.jsonl", &jsonl(&all));
    let opened = build_while(&b, &path, || {
        fs::write(b.path("new"), "{}\n").unwrap();
        fs::rename(b.path("new"), &path).unwrap();
    });
    assert_eq!(bodies(&opened.unwrap().view), all);
}

#[test]
fn standard_input_is_read_like_the_file_short_or_long() {
    let b = Bench::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    let how = How::new(2, &STOP, &|_| ());
    for count in [3, 4000] {
        let text = jsonl(&lines(count, 9000));
        let path = b.file("d.jsonl", &text);
        let mut file = Input::open(&[Origin::Path(path)], b.folder.path(), &how).unwrap();
        let mut pipe = Input::of_pipe(&mut text.as_slice(), b.folder.path(), &how).unwrap();
        let (of_file, of_pipe) = (file.digest(&Memo::none(), &how).unwrap(), pipe.digest(&Memo::none(), &how).unwrap());
        assert_eq!(of_file, of_pipe);
        let mut lines = Vec::new();
        for (range, _) in pipe.sources[0].line_ranges() {
            let mut part = Vec::new();
            pipe.sources[0].read_lines(&range, &mut part).unwrap();
            lines.extend(part);
        }
        assert_eq!(lines, text);
    }
    assert!(tree(b.folder.path()).iter().all(|name| !name.contains("tmp")));
}

#[test]
fn an_interrupt_ends_hashing_and_building_and_leaves_nothing() {
    let b = Bench::new();
    let path = b.file("d.jsonl", &jsonl(&lines(3000, 9000)));
    for step in ["reading", "building"] {
        let stop = Arc::new(AtomicBool::new(false));
        let tell = |event: Event| {
            if matches!(event, Event::Progress { step: s, .. } if s == step) {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        };
        let result = open_or_build(&b.request(&path), &How::new(2, &stop, &tell));
        assert!(matches!(result, Err(Error::Interrupted)), "{step}");
        assert_eq!(rubbish(&b.cache()), Vec::<String>::new(), "{step}");
        assert!(tree(&b.cache()).iter().all(|name| !name.contains("dat")), "{step}");
    }
}

#[test]
fn batches_are_plain_values_that_threads_hand_over() {
    fn is_send<T: Send>() {}
    is_send::<Batch>();
}
