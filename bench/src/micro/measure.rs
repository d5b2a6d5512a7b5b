//! How long a driving end measures, and what it reads meanwhile: the clock, its own CPU time, and
//! that of processes that it is told of.

use super::end::Figures;
use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What a driving end is asked for.
#[derive(Clone, Debug, Args)]
pub struct Measure {
    /// How long to measure.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Pause before each round trip.
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// Idle connections beside the measured one (crowd).
    #[arg(long, default_value_t = 0)]
    pub idle: usize,
    /// Processes whose CPU time counts, too: the serving end, the broker.
    #[arg(long, value_name = "PID")]
    cpu_of: Vec<u32>,
}

/// A stretch of time that is measured.
#[derive(Debug)]
pub struct Measured<'m> {
    measure: &'m Measure,
    begun: Instant,
    cpu_s: f64,
}

impl Measure {
    /// The warm-up is over. What it takes to read other processes' times counts neither here nor at
    /// the end.
    pub fn begin(&self) -> Result<Measured<'_>> {
        let others_s = self.others_s()?;
        Ok(Measured {
            measure: self,
            cpu_s: others_s + own_cpu_s(),
            begun: Instant::now(),
        })
    }

    /// Pause before each round trip.
    pub fn pause(&self) -> Duration {
        Duration::from_micros(self.pause_us)
    }

    fn others_s(&self) -> Result<f64> {
        self.cpu_of.iter().map(|&pid| cpu_s_of(pid)).sum()
    }
}

impl Measured<'_> {
    /// Whether its time is not over.
    pub fn goes_on(&self) -> bool {
        self.begun.elapsed().as_secs_f64() < self.measure.seconds
    }

    /// These figures, with the time that they took.
    pub fn end(self, figures: Figures) -> Result<Figures> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let own_s = own_cpu_s();
        Ok(Figures {
            seconds,
            cpu_s: own_s + self.measure.others_s()? - self.cpu_s,
            ..figures
        })
    }
}

/// CPU time of this process so far.
pub fn own_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU time of another process so far, all threads that live (linux: Documentation/scheduler/
/// sched-stats.rst, /proc/PID/schedstat: nanoseconds on the CPU come first).
pub fn cpu_s_of(pid: u32) -> Result<f64> {
    let mut ns = None;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.with_context(|| format!("process {pid} is gone"))? {
        // A thread may end meanwhile.
        if let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) {
            let first = text.split_whitespace().next();
            let of_thread: u64 = first.context("an empty schedstat")?.parse()?;
            ns = Some(ns.unwrap_or(0) + of_thread);
        }
    }
    ensure!(
        ns.is_some(),
        "process {pid} shows no CPU time (CONFIG_SCHED_INFO)"
    );
    Ok(ns.unwrap_or(0) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn another_process_counts_while_it_is_measured() {
        let busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let mut busy = busy.expect("a shell");
        let measure = Measure {
            seconds: 0.05,
            pause_us: 0,
            idle: 0,
            cpu_of: vec![busy.id()],
        };
        let cpu_before_s = cpu_s_of(busy.id()).expect("it runs");
        let measured = measure.begin().expect("it runs");
        // It may have to wait for a CPU.
        while measured.goes_on() || cpu_s_of(busy.id()).expect("it runs") < cpu_before_s + 0.02 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let figures = measured.end(Figures::default()).expect("it runs");
        busy.kill().expect("it runs");
        busy.wait().expect("it ends");
        assert!(figures.cpu_s >= 0.01, "{figures:?}");
        let own_s = own_cpu_s();
        assert!(
            figures.cpu_s <= own_s + figures.seconds + 0.02,
            "{figures:?}"
        );
    }
}
