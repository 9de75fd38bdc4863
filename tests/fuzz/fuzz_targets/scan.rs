//! A payload in which any byte may be anything.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringload::wire::fuzz::fuzz_scan(data));
