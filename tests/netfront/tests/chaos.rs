//! A backend that does anything: see `fordway_test_netfront::chaos`.

use fordway_test_netfront::chaos;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_backend_does(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
        chaos(&bytes);
    }
}
