//! Cases spread over emulated machines that run beside each other, one thread each: a
//! machine uses one CPU of the host.

use crate::cases::Case;
use anyhow::Result;
use fordway_xen_testbed::{Event, Images, Job, Limits, Run, qemu};
use std::sync::Mutex;

/// What came of the cases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub passed: usize,
    pub failed: usize,
}

/// Runs the cases on so many machines. A machine that goes away fails the cases that it
/// had left, not the others.
pub fn run(
    images: &Images,
    cases: &[&Case],
    machines: usize,
    job: &(dyn Fn(&[&Case]) -> Result<Job> + Sync),
    limits: Limits,
    verbose: bool,
) -> Result<Sum> {
    let sum = Mutex::new(Sum::default());
    let parts = spread(cases, machines);
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .map(|part| scope.spawn(|| one(images, part, job, limits, verbose, &sum)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })?;
    Ok(sum.into_inner().expect("nobody panics with it"))
}

fn one(
    images: &Images,
    cases: &[&Case],
    job: &(dyn Fn(&[&Case]) -> Result<Job> + Sync),
    limits: Limits,
    verbose: bool,
    sum: &Mutex<Sum>,
) -> Result<()> {
    let job = job(cases)?;
    let mut told = 0;
    let outcome = qemu::run(images, &job, limits, &mut |event| match event {
        Event::Up(host, emulated_s) => {
            println!(
                "dom0 is up after {:.0} s ({emulated_s:.1} s emulated)",
                host.as_secs_f64()
            );
        }
        Event::Begin(_) => {}
        Event::Case(run) => {
            told += 1;
            let mut sum = sum.lock().expect("nobody panics with it");
            if run.status == 0 {
                sum.passed += 1;
            } else {
                sum.failed += 1;
            }
            print_case(run, verbose);
        }
    });
    if let Err(error) = outcome {
        println!("FAILED: {error}");
        for case in &cases[told.min(cases.len())..] {
            println!("FAILED: {}, not reached or not ended", case.name);
        }
        sum.lock().expect("nobody panics with it").failed += cases.len() - told;
    }
    Ok(())
}

/// One line for a case that passed; of one that failed, all that is known.
fn print_case(run: &Run, verbose: bool) {
    let word = match run.status {
        0 => "ok",
        124 => "FAILED (its time was up)",
        _ => "FAILED",
    };
    println!(
        "{:<24} {word}  {:.2} s emulated, {:.0} s",
        run.name,
        run.seconds,
        run.host.as_secs_f64()
    );
    if run.status != 0 || verbose {
        for line in run.output.lines().chain(run.diagnosis.lines()) {
            println!("    {line}");
        }
    }
}

/// By weight (their limits), the heaviest first; the table's order within a machine.
fn spread<'a>(cases: &[&'a Case], machines: usize) -> Vec<Vec<&'a Case>> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(cases[at].weight_s));
    let mut parts: Vec<(u32, Vec<usize>)> = vec![(0, Vec::new()); machines];
    for at in order {
        let lightest = parts
            .iter_mut()
            .min_by_key(|(weight, _)| *weight)
            .expect("there is a machine");
        lightest.0 += cases[at].weight_s;
        lightest.1.push(at);
    }
    let mut spread = Vec::new();
    for (_, mut part) in parts {
        part.sort_unstable();
        if !part.is_empty() {
            spread.push(part.into_iter().map(|at| cases[at]).collect());
        }
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn every_case_is_on_one_machine() {
        let all: Vec<&Case> = cases::ALL.iter().collect();
        for machines in 1..4 {
            let parts = spread(&all, machines);
            let mut names: Vec<&str> = parts.iter().flatten().map(|case| case.name).collect();
            names.sort_unstable();
            let mut expected: Vec<&str> = all.iter().map(|case| case.name).collect();
            expected.sort_unstable();
            assert_eq!(names, expected);
        }
    }
}
