//! See `fordway_test_fuzz::machine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fordway_test_fuzz::machine(bytes));
