//! The corpus through the fuzzers' bodies, with the stable compiler.

use fordway_test_fuzz::TARGETS;
use std::path::Path;

#[test]
fn the_corpus_holds() {
    for (name, target) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(name);
        let mut count = 0;
        for entry in std::fs::read_dir(&directory).expect("each target has a corpus") {
            let path = entry.expect("an entry").path();
            println!("{}", path.display());
            target(&std::fs::read(&path).expect("a file"));
            count += 1;
        }
        assert_ne!(count, 0, "{name} has no corpus");
    }
}
