//! See `fordway_test_fuzz::ring_producer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fordway_test_fuzz::ring_producer(bytes));
