//! What a process holds, from /proc.

use fordway_lab::proc;
use std::fs;

/// Memory that is resident now (proc(5), VmRSS).
pub fn rss_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    number(&status, "VmRSS:")
}

/// Memory of its own that is resident now (proc(5), RssAnon).
pub fn own_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    number(&status, "RssAnon:")
}

/// Shared memory in KB; what several processes have mapped counts for each in part, so that the
/// sum over all of them is what there is (proc_pid_smaps(5), Pss_Shmem).
pub fn shared_kb(pid: u32) -> u64 {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    number(&sums, "Pss_Shmem:")
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
        assert!(rss_kb(me) > own_kb(me) && own_kb(me) > 100);
        assert!(descriptors(me) >= 3 && mappings(me) > 5);
        let file = fs::File::open("/dev/null").unwrap();
        let more = descriptors(me);
        drop(file);
        assert!(more >= 4);
    }
}
