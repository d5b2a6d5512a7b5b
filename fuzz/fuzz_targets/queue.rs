//! See `fordway_test_fuzz::queue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fordway_test_fuzz::queue(bytes));
