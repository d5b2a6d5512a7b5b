//! The files that servers serve: the same bytes for the unikernel, the Linux guest and
//! the comparison in dom0.

use fordway_xen_testbed::cpio::Archive;
use fordway_xen_testbed::{Job, Source};

/// Name and size of each. index.html is the small page of the marks.
const FILES: [(&str, usize); 7] = [
    ("index.html", 100),
    ("empty", 0),
    ("1k", 1 << 10),
    ("100k", 100 << 10),
    ("1m", 1 << 20),
    ("2m", 2 << 20),
    ("16m", 16 << 20),
];

/// Puts them into the job: /job/www for comparison, /job/www.cpio for the Linux guest.
pub fn add_to(job: &mut Job) -> std::io::Result<()> {
    let mut archive = Archive::new(Vec::new());
    for (name, size) in FILES {
        let content = content(size);
        archive.file(&format!("www/{name}"), 0o644, &content)?;
        job.files
            .push((format!("www/{name}"), Source::Bytes(content)));
    }
    let archive = Source::Bytes(archive.finish()?);
    job.files.push(("www.cpio".to_owned(), archive));
    Ok(())
}

/// Bytes without a period, the same in every run.
fn content(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_whole_and_equal_each_time() {
        assert_eq!(content(100).len(), 100);
        assert_eq!(content(1000), content(1000));
    }
}
