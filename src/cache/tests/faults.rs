//! Everything that goes wrong with a cache, and that the run goes on: damage, races, dead builders, full and foreign folders.
//! A long file: each fault is a test of its own, and together they are the list that a reader checks against.

use std::{
    fs::{File, TryLockError},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    process::{Command, Stdio},
    sync::{Mutex, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use super::{super::open::open_with as open_locked, *};

fn entry_of(b: &Bench, request: &BuildRequest) -> PathBuf {
    let opened = open(request).unwrap();
    assert!(opened.entry.as_ref().unwrap().starts_with(b.cache()));
    opened.entry.unwrap()
}

fn how<T>(work: impl FnOnce(&How<'_>) -> T) -> T {
    work(&How::new(2, &AtomicBool::new(false), &|_| ()))
}

fn problems(b: &Bench) -> Vec<String> {
    let verdicts = how(|how| store::verify(&b.cache(), &[], how)).unwrap();
    verdicts.into_iter().filter_map(|v| v.problem).collect()
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

#[test]
fn who_writes_to_an_entry_while_it_is_built_gets_no_byte_into_a_run_or_the_cache() {
    let b = Bench::new();
    let mut hits = 0;
    for round in 0..10 {
        let want = lines(300 + round, 9000);
        let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
        let built = AtomicBool::new(false);
        let opened = std::thread::scope(|scope| {
            // A byte of what is written first, its time put back at once.
            let writer = scope.spawn(|| {
                let mut hit = false;
                while !built.load(Ordering::Relaxed) && !hit {
                    let folders = fs::read_dir(b.cache()).into_iter().flatten().flatten().map(|e| e.path());
                    let data = folders.filter(|p| p.to_string_lossy().contains(".tmp.")).map(|p| p.join("dataset.dat"));
                    for file in data.filter_map(|path| File::options().read(true).write(true).open(path).ok()) {
                        let meta = file.metadata().unwrap();
                        let mut byte = [0];
                        if meta.len() > 5000 && file.read_exact_at(&mut byte, 5000).is_ok() {
                            hit = file.write_all_at(&[byte[0] ^ 1], 5000).is_ok();
                            let _ = file.set_modified(meta.modified().unwrap());
                        }
                    }
                }
                hit
            });
            let opened = open(&request).unwrap();
            built.store(true, Ordering::Relaxed);
            hits += u32::from(writer.join().unwrap());
            opened
        });
        assert!(bodies(&opened.view) == want, "round {round}: {:?}", opened.state);
        drop(opened);
        assert!(bodies(&open(&request).unwrap().view) == want, "round {round}");
        assert_eq!(problems(&b), Vec::<String>::new());
    }
    assert!(hits > 0, "nothing was written to in time");
}

#[test]
fn any_damage_to_an_entry_is_a_miss_that_heals() {
    let b = Bench::new();
    let want = lines(200, 1500);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let entry = entry_of(&b, &request);
    let at = |name: &str| entry.join(name);
    let rewrite = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(at(name)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(at(name), text.replace(from, to)).unwrap();
    };
    let key = open(&request).unwrap().key.to_string();
    let version = format!("\"version\": {},", layout::VERSION);
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let damages: Vec<Damage<'_>> = vec![
        ("data cut", Box::new(|| File::options().write(true).open(at("dataset.dat")).unwrap().set_len(1000).unwrap())),
        ("data grown", Box::new(|| fs::write(at("dataset.dat"), vec![0; 999_999]).unwrap())),
        ("data gone", Box::new(|| fs::remove_file(at("dataset.dat")).unwrap())),
        (
            "data is a folder",
            Box::new(|| {
                fs::remove_file(at("dataset.dat")).unwrap();
                fs::create_dir(at("dataset.dat")).unwrap();
            }),
        ),
        (
            "data is a symlink",
            Box::new(|| {
                fs::rename(at("dataset.dat"), b.path("elsewhere")).unwrap();
                symlink(b.path("elsewhere"), at("dataset.dat")).unwrap();
            }),
        ),
        ("index header", Box::new(|| flip(&at("index.dat"), 20))),
        ("index directory", Box::new(|| flip(&at("index.dat"), 200))),
        ("index column", Box::new(|| flip(&at("index.dat"), fs::metadata(at("index.dat")).unwrap().len() / 2))),
        (
            "index cut",
            Box::new(|| {
                let len = fs::metadata(at("index.dat")).unwrap().len();
                File::options().write(true).open(at("index.dat")).unwrap().set_len(len - 8).unwrap();
            }),
        ),
        ("index empty", Box::new(|| fs::write(at("index.dat"), "").unwrap())),
        ("index gone", Box::new(|| fs::remove_file(at("index.dat")).unwrap())),
        ("manifest half", Box::new(|| fs::write(at("manifest.json"), "{").unwrap())),
        ("manifest empty", Box::new(|| fs::write(at("manifest.json"), "").unwrap())),
        ("manifest gone", Box::new(|| fs::remove_file(at("manifest.json")).unwrap())),
        ("manifest of another version", Box::new(|| rewrite("manifest.json", &version, "\"version\": 999999,"))),
        ("manifest of an older version", Box::new(|| rewrite("manifest.json", &version, "\"version\": 0,"))),
        ("manifest of another key", Box::new(|| rewrite("manifest.json", &key, &"f".repeat(64)))),
        ("manifest of another spec", Box::new(|| rewrite("manifest.json", "raw_payload", "inputs_json"))),
        ("manifest of another count", Box::new(|| rewrite("manifest.json", "\"records\": 200,", "\"records\": 201,"))),
        (
            "entry is a file",
            Box::new(|| {
                fs::remove_dir_all(&entry).unwrap();
                fs::write(&entry, "x").unwrap();
            }),
        ),
        (
            "entry is empty",
            Box::new(|| {
                fs::remove_dir_all(&entry).unwrap();
                fs::create_dir(&entry).unwrap();
            }),
        ),
        (
            "entry is a symlink",
            Box::new(|| {
                let _ = fs::remove_dir_all(b.path("moved"));
                fs::rename(&entry, b.path("moved")).unwrap();
                symlink(b.path("moved"), &entry).unwrap();
            }),
        ),
    ];
    for (what, damage) in damages {
        damage();
        let opened = open(&request).unwrap();
        assert_eq!((opened.state, bodies(&opened.view) == want), (CacheState::Miss, true), "{what}");
        assert_eq!(opened.notices.len(), 1, "{what}: {:?}", opened.notices);
        assert_eq!(open(&request).unwrap().state, CacheState::Hit, "{what}: not healed");
        assert_eq!(rubbish(&b.cache()), Vec::<String>::new(), "{what}");
    }
    assert_eq!(problems(&b), Vec::<String>::new());
}

#[test]
fn a_flipped_body_byte_is_found_by_verify_and_by_a_run_that_asks() {
    let b = Bench::new();
    let want = lines(200, 1500);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let entry = entry_of(&b, &request);
    let bytes = fs::metadata(entry.join("dataset.dat")).unwrap().len();
    for at in [0, bytes / 3, bytes - 1] {
        flip(&entry.join("dataset.dat"), at);
        assert_eq!(problems(&b).len(), 1, "{at}");
        let opened = open(&BuildRequest { verify: true, ..request.clone() }).unwrap();
        assert_eq!((opened.state, bodies(&opened.view) == want), (CacheState::Miss, true));
        assert!(problems(&b).is_empty());
    }
}

#[test]
fn a_body_byte_that_is_edited_in_place_is_a_miss_though_size_and_time_are_put_back() {
    let b = Bench::new();
    let want = lines(200, 1500);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let data = entry_of(&b, &request).join("dataset.dat");
    let bytes = fs::metadata(&data).unwrap().len();
    for at in [0, bytes / 3, bytes - 1] {
        let modified = fs::metadata(&data).unwrap().modified().unwrap();
        flip(&data, at);
        File::options().write(true).open(&data).unwrap().set_modified(modified).unwrap();
        let opened = open(&request).unwrap();
        assert_eq!((opened.state, bodies(&opened.view) == want), (CacheState::Miss, true), "{at}");
        assert!(opened.notices[0].contains("dataset.dat is damaged"), "{:?}", opened.notices);
    }
    // Touched and whole: said, and used.
    File::open(&data).unwrap().set_modified(SystemTime::now()).unwrap();
    let opened = open(&request).unwrap();
    assert_eq!((opened.state, opened.notices.len()), (CacheState::Hit, 1), "{:?}", opened.notices);
    assert!(opened.notices[0].contains("touched"), "{:?}", opened.notices);
}

#[test]
fn an_entry_under_a_foreign_name_is_not_used() {
    let b = Bench::new();
    let one = b.request(&b.file("1.jsonl", &jsonl(&lines(20, 300))));
    let two = b.request(&b.file("2.jsonl", &jsonl(&lines(21, 300))));
    let (first, second) = (entry_of(&b, &one), entry_of(&b, &two));
    fs::remove_dir_all(&second).unwrap();
    fs::rename(&first, &second).unwrap();
    let opened = open(&two).unwrap();
    assert_eq!((opened.state, opened.view.records()), (CacheState::Miss, 21));
}

#[test]
fn eight_builders_at_once_make_one_entry() {
    let b = Bench::new();
    let want = lines(3000, 3000);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let states: Vec<CacheState> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| open_with(&request, 1).unwrap())).collect();
        all.into_iter()
            .map(|one| {
                let opened = one.join().unwrap();
                assert_eq!(bodies(&opened.view), want);
                opened.state
            })
            .collect()
    });
    assert_eq!(states.iter().filter(|s| **s == CacheState::Miss).count(), 1, "{states:?}");
    assert!(!states.contains(&CacheState::Off));
    assert_eq!(rubbish(&b.cache()), Vec::<String>::new());
}

#[test]
fn where_locks_are_missing_or_lie_the_first_rename_wins() {
    let missing = |_: &File| Err(TryLockError::Error(std::io::Error::from_raw_os_error(libc::ENOLCK)));
    let unknown = |_: &File| Err(TryLockError::Error(std::io::Error::from_raw_os_error(libc::ENOSYS)));
    let lying = |_: &File| Ok(());
    let kinds: [(&str, super::super::open::TryLock); 3] = [("ENOLCK", missing), ("ENOSYS", unknown), ("lying", lying)];
    for (what, try_lock) in kinds {
        let b = Bench::new();
        let want = lines(1000, 3000);
        let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let stop = AtomicBool::new(false);
                    let opened = open_locked(&request, &How::new(1, &stop, &|_| ()), try_lock).unwrap();
                    assert_ne!(opened.state, CacheState::Off, "{what}: {:?}", opened.notices);
                    assert_eq!(bodies(&opened.view), want, "{what}");
                });
            }
        });
        assert_eq!(rubbish(&b.cache()), Vec::<String>::new(), "{what}");
        assert!(problems(&b).is_empty());
    }
}

#[test]
fn a_lock_that_is_not_had_in_time_means_a_private_build() {
    let b = Bench::new();
    let want = lines(20, 300);
    let request =
        BuildRequest { lock_timeout: Duration::from_millis(300), ..b.request(&b.file("d.jsonl", &jsonl(&want))) };
    let key = open(&BuildRequest { cache: None, ..request.clone() }).unwrap().key;
    fs::create_dir(b.cache()).unwrap();
    let lock = File::create(b.cache().join(format!("{key}.lock"))).unwrap();
    lock.lock().unwrap();
    let heard = Mutex::new(Vec::new());
    let tell = |event: Event| {
        if let Event::Notice(text) = event {
            heard.lock().unwrap().push(text);
        }
    };
    let stop = AtomicBool::new(false);
    let opened = open_or_build(&request, &How::new(1, &stop, &tell)).unwrap();
    assert_eq!((opened.state, bodies(&opened.view)), (CacheState::Off, want.clone()));
    let heard = heard.into_inner().unwrap();
    assert!(heard[0].starts_with("waiting for") && heard[1].contains("--lock-timeout"), "{heard:?}");
    assert_eq!(heard, opened.notices);
    drop(lock);
    assert_eq!(open(&request).unwrap().state, CacheState::Miss);
}

#[test]
fn who_waits_takes_the_entry_as_soon_as_it_is_there_and_ends_on_an_interrupt() {
    let b = Bench::new();
    let want = lines(20, 300);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let entry = entry_of(&b, &request);
    let aside = b.path("aside");
    fs::rename(&entry, &aside).unwrap();
    let lock = File::open(b.cache().join(format!("{}.lock", entry.file_name().unwrap().to_str().unwrap()))).unwrap();
    lock.lock().unwrap();
    // A holder that is stuck after it has put the entry there.
    let appear = |event: Event| {
        if let (Event::Notice(_), true) = (event, aside.exists()) {
            fs::rename(&aside, &entry).unwrap();
        }
    };
    let stop = AtomicBool::new(false);
    let opened = open_or_build(&request, &How::new(1, &stop, &appear)).unwrap();
    assert_eq!(opened.state, CacheState::Hit);
    fs::remove_dir_all(&entry).unwrap();
    let interrupt = |_: Event| stop.store(true, Ordering::Relaxed);
    let result = open_or_build(&request, &How::new(1, &stop, &interrupt));
    assert!(matches!(result, Err(Error::Interrupted)));
}

#[test]
fn a_lock_path_that_is_no_file_of_ours_is_not_followed() {
    let b = Bench::new();
    let want = lines(20, 300);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let key = open(&BuildRequest { cache: None, ..request.clone() }).unwrap().key;
    fs::create_dir(b.cache()).unwrap();
    let lock = b.cache().join(format!("{key}.lock"));
    let victim = b.file("victim", b"keep me");
    let make: [&dyn Fn(); 4] = [
        &|| symlink(&victim, &lock).unwrap(),
        &|| symlink(b.path("nowhere"), &lock).unwrap(),
        &|| fs::create_dir(&lock).unwrap(),
        &|| nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap(),
    ];
    for (k, make) in make.iter().enumerate() {
        make();
        let opened = open(&request).unwrap();
        assert_eq!((opened.state, bodies(&opened.view)), (CacheState::Off, want.clone()), "{k}");
        assert!(opened.notices[0].contains("building privately"), "{k}: {:?}", opened.notices);
        let _ = fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock));
    }
    assert_eq!(fs::read(&victim).unwrap(), b"keep me");
    assert!(!b.path("nowhere").exists());
}

#[test]
fn a_cache_that_cannot_be_had_means_a_private_build() {
    let b = Bench::new();
    let want = lines(20, 300);
    let dataset = b.file("d.jsonl", &jsonl(&want));
    b.file("file", b"");
    let request = BuildRequest { cache: Some(b.path("file/cache")), ..b.request(&dataset) };
    let opened = open(&request).unwrap();
    assert_eq!((opened.state, bodies(&opened.view)), (CacheState::Off, want.clone()));
    assert!(opened.entry.is_none() && opened.notices.len() == 1);
    if nix::unistd::geteuid().is_root() {
        // Another user's folder is not trusted, and neither is another user's entry in ours.
        let request = b.request(&dataset);
        let entry = entry_of(&b, &request);
        let chown = |path: &Path, uid| nix::unistd::chown(path, Some(nix::unistd::Uid::from_raw(uid)), None).unwrap();
        for path in [entry.clone(), entry.join("index.dat"), entry.join("dataset.dat"), entry.join("manifest.json")] {
            chown(&path, 12_345);
            let opened = open(&request).unwrap();
            assert_eq!(opened.state, CacheState::Miss, "{path:?}");
            assert!(opened.notices[0].contains("not trusted"), "{:?}", opened.notices);
        }
        chown(&b.cache(), 12_345);
        assert_eq!(open(&request).unwrap().state, CacheState::Off);
    }
}

/// A small file system of its own, where that may be made.
struct Small {
    path: PathBuf,
}

impl Small {
    fn new(path: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        mount.is_ok_and(|status| status.success()).then_some(Self { path })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_is_said_and_holds_no_room() {
    let b = Bench::new();
    let Some(small) = Small::new(b.path("small"), "3m") else { return };
    let large = b.file("large.jsonl", &jsonl(&lines(3000, 2000)));
    let request = BuildRequest { cache: Some(small.path.clone()), ..b.request(&large) };
    let error = open(&request).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }) && error.exit_code() == 3, "{error}");
    assert_eq!(rubbish(&small.path), Vec::<String>::new());
    assert!(tree(&small.path).iter().all(|name| !name.contains("dat")));
    let private = open(&BuildRequest { when_full: WhenFull::BuildPrivately, ..request.clone() }).unwrap();
    assert_eq!((private.state, private.view.records()), (CacheState::Off, 3000));
    let few = b.file("few.jsonl", &jsonl(&lines(500, 2000)));
    assert_eq!(
        open(&BuildRequest { cache: Some(small.path.clone()), ..b.request(&few) }).unwrap().state,
        CacheState::Miss
    );
}

#[test]
fn a_read_only_cache_is_used_and_not_written() {
    let b = Bench::new();
    let Some(small) = Small::new(b.path("small"), "30m") else { return };
    let there =
        BuildRequest { cache: Some(small.path.clone()), ..b.request(&b.file("1.jsonl", &jsonl(&lines(50, 900)))) };
    let absent =
        BuildRequest { cache: Some(small.path.clone()), ..b.request(&b.file("2.jsonl", &jsonl(&lines(51, 900)))) };
    open(&there).unwrap();
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&small.path).status().unwrap();
    assert!(status.success());
    assert_eq!(open(&there).unwrap().state, CacheState::Hit);
    let opened = open(&absent).unwrap();
    assert_eq!((opened.state, opened.view.records()), (CacheState::Off, 51));
    assert_eq!(opened.notices.len(), 1, "{:?}", opened.notices);
}

#[test]
fn a_running_replay_outlives_the_removal_and_the_rebuild_of_its_entry() {
    let b = Bench::new();
    let want = lines(200, 9000);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let running = open(&request).unwrap();
    store::rm(&b.cache(), &[running.key]).unwrap();
    assert_eq!(open(&request).unwrap().state, CacheState::Miss);
    assert_eq!(bodies(&running.view), want);
    assert!(!running.view.damaged() && !running.view.changed());
}

#[test]
fn data_cut_short_under_a_running_replay_is_seen_and_no_signal() {
    let b = Bench::new();
    let want = lines(300, 9000);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let opened = open(&request).unwrap();
    let data = opened.entry.as_ref().unwrap().join("dataset.dat");
    File::options().write(true).open(data).unwrap().set_len(10).unwrap();
    assert!(opened.view.changed());
    let mut body = Vec::new();
    assert!(opened.view.body_to(RecordId(250), &mut body).is_err());
    assert!(opened.view.damaged() && !opened.view.body_is_whole(RecordId(250)));
    assert_eq!(open(&request).unwrap().state, CacheState::Miss);
}

#[test]
fn gc_keeps_what_was_used_last_and_what_is_in_use() {
    let b = Bench::new();
    let requests: Vec<_> =
        (0..3).map(|k| b.request(&b.file(&format!("{k}.jsonl"), &jsonl(&lines(500 + k, 2000))))).collect();
    let opened: Vec<_> = requests.iter().map(|r| open(r).unwrap()).collect();
    let set_used = |k: usize, ago: u64| {
        let manifest = opened[k].entry.as_ref().unwrap().join("manifest.json");
        File::open(manifest).unwrap().set_modified(SystemTime::now() - Duration::from_secs(ago)).unwrap();
    };
    (0..3).for_each(|k| set_used(k, 1000 * (k as u64 + 1)));
    let keys: Vec<_> = store::list(&b.cache()).unwrap().into_iter().map(|e| (e.key, e.in_use)).collect();
    assert_eq!(keys, [0, 1, 2].map(|k| (opened[k].key, true)));
    let keep = store::Keep { max_size: Some(1_500_000), ..store::Keep::default() };
    let all_used = store::gc(&b.cache(), &keep).unwrap();
    assert_eq!((all_used.removed.len(), all_used.kept.len()), (0, 2));
    let keys: Vec<_> = opened.iter().map(|o| o.key).collect();
    drop(opened);
    // Another test that starts a process holds every lock of this one for a moment, between fork and exec.
    let patience = Instant::now();
    while store::list(&b.cache()).unwrap().iter().any(|e| e.in_use) && patience.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    let dry = store::gc(&b.cache(), &store::Keep { dry_run: true, ..keep }).unwrap();
    assert_eq!(store::list(&b.cache()).unwrap().len(), 3);
    let done = store::gc(&b.cache(), &keep).unwrap();
    assert_eq!(dry.removed, done.removed);
    assert_eq!(done.removed.iter().map(|r| r.0).collect::<Vec<_>>(), keys[1..]);
    let old = store::gc(&b.cache(), &store::Keep { max_age: Some(Duration::from_secs(500)), ..store::Keep::default() });
    assert_eq!(old.unwrap().removed.len(), 1);
    assert_eq!(rubbish(&b.cache()), Vec::<String>::new());
}

#[test]
fn leftovers_of_dead_builders_go_and_those_of_living_ones_stay() {
    let b = Bench::new();
    let request = b.request(&b.file("d.jsonl", &jsonl(&lines(20, 300))));
    let key = open(&request).unwrap().key;
    let dead = b.cache().join(format!(".{key}.tmp.999999999.0123456789abcdef"));
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("dataset.dat"), "x").unwrap();
    let alive = folder::Temporary::new(&b.cache(), key).unwrap();
    let done = store::gc(&b.cache(), &store::Keep::default()).unwrap();
    assert_eq!((done.leftovers, dead.exists(), alive.path().exists()), (1, false, true));
    fs::create_dir(&dead).unwrap();
    fs::remove_dir_all(b.cache().join(key.to_string())).unwrap();
    open(&request).unwrap();
    assert!(!dead.exists() && alive.path().exists(), "the next builder of a key cleans up behind the dead one");
}

#[test]
fn an_exported_entry_comes_in_on_another_machine_byte_for_byte() {
    let (b, c) = (Bench::new(), Bench::new());
    let want = lines(300, 9000);
    let text = jsonl(&want);
    let request = b.request(&b.file("d.jsonl", &text));
    let opened = open(&request).unwrap();
    let mut out = Vec::new();
    how(|how| store::export(&b.cache(), opened.key, &mut out, how)).unwrap();
    assert!(out.len() < text.len() / 2);
    for _ in 0..2 {
        assert_eq!(how(|how| store::import(&c.cache(), &mut out.as_slice(), how)).unwrap(), opened.key);
    }
    let there = open(&c.request(&c.file("other.jsonl", &text))).unwrap();
    assert_eq!((there.state, bodies(&there.view)), (CacheState::Hit, want));
    for name in ["dataset.dat", "index.dat"] {
        let of = |o: &Opened| fs::read(o.entry.as_ref().unwrap().join(name)).unwrap();
        assert_eq!(of(&there), of(&opened));
    }
    let d = Bench::new();
    let last_bytes = out.len() - 8..out.len();
    for at in (0..out.len()).step_by(out.len() / 40).chain(last_bytes) {
        let mut bad = out.clone();
        bad[at] ^= 0x10;
        for bad in [&bad[..], &out[..at]] {
            assert!(how(|how| store::import(&d.cache(), &mut &bad[..], how)).is_err(), "byte {at}");
        }
    }
    assert_eq!(tree(&d.cache()), Vec::<String>::new());
}

#[test]
fn an_entry_that_points_into_the_dataset_is_used_only_with_just_that_dataset() {
    let b = Bench::new();
    let want = lines(300, 9000);
    let path = b.file("d.jsonl", &jsonl(&want));
    let request = BuildRequest { store: Store::Reference, ..b.request(&path) };
    let miss = open(&request).unwrap();
    let hit = open(&request).unwrap();
    assert_eq!((miss.state, hit.state), (CacheState::Miss, CacheState::Hit));
    assert_eq!((bodies(&miss.view), bodies(&hit.view)), (want.clone(), want.clone()));
    assert!(!hit.entry.as_ref().unwrap().join("dataset.dat").exists());
    assert!(problems(&b).is_empty());
    let private = open(&BuildRequest { cache: None, ..request.clone() }).unwrap();
    assert_eq!(bodies(&private.view), want);
    flip(&path, 2);
    let other = open(&request).unwrap();
    assert_ne!(other.key, hit.key);
    let two = BuildRequest { inputs: vec![Origin::Path(path.clone()), Origin::Path(path)], ..request };
    assert!(open(&two).unwrap_err().to_string().contains("--store reference"));
}

#[test]
fn keys_are_found_by_their_beginning() {
    let b = Bench::new();
    let key = open(&b.request(&b.file("d.jsonl", b"{}\n"))).unwrap().key.to_string();
    assert_eq!(store::find(&b.cache(), &key[..6]).unwrap().key.to_string(), key);
    for bad in ["abc", "zzzz", "0000000"] {
        assert!(store::find(&b.cache(), bad).is_err(), "{bad}");
    }
    assert!(how(|how| store::verify(&b.cache(), &[Digest([0; 32])], how)).is_err());
    assert!(store::list(&b.path("none")).unwrap().is_empty());
}

/// Not a test of its own: the builder that [`a_builder_killed_at_any_moment_leaves_nothing_that_is_used`] kills.
#[test]
fn builder_to_be_killed() {
    let Some(folder) = std::env::var_os("RINGLOAD_TEST_KILLED") else { return };
    let folder = PathBuf::from(folder);
    let request = BuildRequest::new(vec![Origin::Path(folder.join("d.jsonl"))], Some(folder.join("cache")));
    open(&request).unwrap();
}

#[test]
fn a_builder_killed_at_any_moment_leaves_nothing_that_is_used() {
    let b = Bench::new();
    let want = lines(1500, 1500);
    let request = b.request(&b.file("d.jsonl", &jsonl(&want)));
    let spawn = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::tests::faults::builder_to_be_killed"])
            .env("RINGLOAD_TEST_KILLED", b.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let begun = Instant::now();
    assert!(spawn().wait().unwrap().success());
    let whole = begun.elapsed();
    let (mut hits, key) = (0, open(&request).unwrap().key);
    store::rm(&b.cache(), &[key]).unwrap();
    for k in 0..200u32 {
        let mut child = spawn();
        std::thread::sleep(whole * (k * 7919 % 200) / 180);
        child.kill().unwrap();
        child.wait().unwrap();
        // What has its name is whole, whenever that was.
        if b.cache().join(key.to_string()).exists() {
            let opened = open(&BuildRequest { verify: true, ..request.clone() }).unwrap();
            assert_eq!(opened.state, CacheState::Hit, "{k}: {:?}", opened.notices);
            hits += 1;
            store::rm(&b.cache(), &[key]).unwrap();
        }
    }
    assert!((1..200).contains(&hits), "{hits}");
    let opened = open(&request).unwrap();
    assert_eq!(bodies(&opened.view), want);
    store::gc(&b.cache(), &store::Keep::default()).unwrap();
    assert!(problems(&b).is_empty());
    assert_eq!(rubbish(&b.cache()), Vec::<String>::new());
    assert!(fs::metadata(b.cache()).unwrap().uid() == nix::unistd::geteuid().as_raw());
}
