//! See `fordway_test_fuzz::driver`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fordway_test_fuzz::driver(bytes));
