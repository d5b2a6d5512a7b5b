//! What a process holds, from /proc.

use fordway_bench::proc;
use std::fs;

/// Memory that is resident now (proc(5), VmRSS).
pub fn rss_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    number(&status, "VmRSS:")
}

/// All shared memory of the machine in KB (proc(5), Shmem); other programs' too.
pub fn shared_kb() -> u64 {
    number(
        &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
        "Shmem:",
    )
}

/// Open descriptors.
pub fn descriptors(pid: u32) -> usize {
    proc::descriptors(pid).len()
}

/// Mappings.
pub fn mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().count()
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|line| line.split_whitespace().next());
    figure.and_then(|figure| figure.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_itself() {
        let me = std::process::id();
        assert!(rss_kb(me) > 100 && descriptors(me) >= 3 && mappings(me) > 5);
        let file = fs::File::open("/dev/null").unwrap();
        let more = descriptors(me);
        drop(file);
        assert!(more >= 4);
    }
}
