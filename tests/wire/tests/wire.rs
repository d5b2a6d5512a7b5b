//! All scripts, against the stack and against Linux.

use fordway_test_wire::{Linux, Setup, StackSide, play, scripts};

/// Scripts of which the stack is known to differ, each with its reason.
fn known() -> Vec<(String, String)> {
    let text = include_str!("../known.txt");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let pairs = lines.map(|line| line.split_once(": ").expect("NAME: REASON"));
    pairs
        .map(|(name, why)| (name.to_owned(), why.to_owned()))
        .collect()
}

fn summary(all: usize, failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} of {all}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn the_stack_does_what_the_scripts_say() {
    let (scripts, known) = (scripts(), known());
    let mut failures = Vec::new();
    for script in &scripts {
        let mut side = StackSide::new(script, Setup::usual(script.is_ipv6)).expect("the stack");
        let played = play(script, &mut side);
        let reason = known.iter().find(|(name, _)| *name == script.name);
        match (played, reason) {
            (Err(what), None) => failures.push(what),
            (Err(what), Some((_, why))) => println!("known ({why}): {what}"),
            (Ok(()), Some(_)) => {
                failures.push(format!("{}: strike it from known.txt", script.name))
            }
            (Ok(()), None) => println!("{}", script.name),
        }
    }
    summary(scripts.len(), &failures);
}

#[test]
fn linux_does_what_the_scripts_say() {
    if !rustix::process::geteuid().is_root() {
        return fordway_test_skip::skipped("needs root for a network namespace with a tap device");
    }
    let scripts = scripts();
    let mut failures = Vec::new();
    // Each has a namespace of its own, and most of the time is waiting.
    for some in scripts.chunks(8) {
        std::thread::scope(|scope| {
            let played = some.iter().map(|script| {
                scope.spawn(move || match Linux::new(script) {
                    Ok(mut side) => play(script, &mut side),
                    Err(error) => Err(format!("{}: {error:#}", script.name)),
                })
            });
            let played: Vec<_> = played.collect();
            for thread in played {
                failures.extend(thread.join().expect("joins").err());
            }
        });
    }
    summary(scripts.len(), &failures);
}

#[test]
fn what_is_known_has_a_script() {
    let scripts = scripts();
    if std::env::var_os("FORDWAY_WIRE").is_some() {
        return;
    }
    for (name, _) in known() {
        assert!(scripts.iter().any(|script| script.name == name), "{name}");
    }
}
