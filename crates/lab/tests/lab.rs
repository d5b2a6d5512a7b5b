//! The lab itself: it finds what a program leaves, and leaves nothing. As root, on
//! the release build; without them the tests say so and pass.

use fordway_lab::proc;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordwayd::admin::Request;
use std::time::Duration;

fn lab() -> Option<Lab> {
    if !rustix::process::getuid().is_root() {
        fordway_test_skip::skipped("domains need root");
        return None;
    }
    Some(Lab::start().unwrap())
}

/// Returns when the launcher has become the program.
fn wait_for_start(lab: &Lab, program: &Program) {
    let limit = Duration::from_secs(60);
    lab.wait_until(limit, "the program runs", || Ok(!program.pids().is_empty()))
        .unwrap();
}

fn server() -> Place {
    Place::domain("server", [10, 77, 0, 11])
}

fn client() -> Place {
    Place::domain("client", [10, 77, 0, 12])
}

#[test]
fn two_domains_talk_and_nothing_is_left() {
    let Some(lab) = lab() else { return };
    let dir = lab.work_dir();
    let port = "4444";
    let echo = Spawn::new([
        "socat",
        "-t30",
        &format!("TCP-LISTEN:{port},fork,reuseaddr"),
        "EXEC:cat",
    ]);
    let echo = lab.spawn(&server(), PathChoice::Kernel, &echo).unwrap();
    echo.wait_for_port(4444).unwrap();
    let ask = Spawn::new(["socat", "-t5", "-", &format!("TCP:server:{port}")])
        .stdin(Stdin::Bytes(b"hello".to_vec()));
    let answer = lab.run(&client(), PathChoice::Kernel, &ask).unwrap();
    assert_eq!(answer.text(), "hello", "by name, over the bridge");
    let names: Vec<String> = lab
        .domains()
        .unwrap()
        .into_iter()
        .map(|domain| domain.name)
        .collect();
    assert!(
        names.ends_with(&["server".to_owned(), "client".to_owned()]),
        "{names:?}"
    );
    assert!(echo.is_running());
    echo.stop().unwrap();
    assert_eq!(lab.leftovers(), [""; 0]);
    assert_eq!(lab.close(), [""; 0]);
    assert!(!dir.exists());
}

#[test]
fn a_broker_at_rest_holds_nothing_of_who_has_hung_up() {
    let Some(lab) = lab() else { return };
    let before = lab.broker_at_rest().unwrap();
    for _ in 0..50 {
        let mut question = lab.put(&[Request::Info]).unwrap();
        question.answer().unwrap();
        let while_open = lab.broker_at_rest().unwrap();
        assert_ne!(while_open, before);
        drop(question);
        assert_eq!(lab.broker_at_rest().unwrap(), before);
    }
}

#[test]
fn a_daemon_in_a_domain_is_found_and_removed() {
    let Some(lab) = lab() else { return };
    lab.run(
        &server(),
        PathChoice::Kernel,
        &Spawn::new(["setsid", "-f", "sleep", "1000"]),
    )
    .unwrap();
    let found = lab.leftovers();
    assert!(found.len() == 1 && found[0].contains("sleep"), "{found:?}");
    let pid: u32 = found[0].split_whitespace().nth(1).unwrap().parse().unwrap();
    let sleeper = proc::stat(pid).unwrap();
    let forced = lab.close();
    assert!(
        forced.iter().any(|what| what.contains("sleep")),
        "{forced:?}"
    );
    assert!(!proc::is_alive(&sleeper));
}

#[test]
fn a_dropped_lab_takes_programs_and_domains_along() {
    let Some(lab) = lab() else { return };
    let program = lab
        .spawn(
            &server(),
            PathChoice::Kernel,
            &Spawn::new(["sleep", "1000"]),
        )
        .unwrap();
    wait_for_start(&lab, &program);
    let process = proc::stat(program.pid()).unwrap();
    let (dir, broker) = (
        lab.work_dir(),
        proc::stat(lab.broker_pid().unwrap()).unwrap(),
    );
    drop(lab);
    assert!(!proc::is_alive(&process) && !proc::is_alive(&broker));
    assert!(!dir.exists());
    drop(program);
}

#[test]
fn a_broker_comes_back_with_its_domains() {
    let Some(mut lab) = lab() else {
        return;
    };
    let program = lab
        .spawn(
            &server(),
            PathChoice::Kernel,
            &Spawn::new(["sleep", "1000"]),
        )
        .unwrap();
    wait_for_start(&lab, &program);
    for kill in [false, true] {
        let before = lab.broker_pid().unwrap();
        lab.restart_broker(kill).unwrap();
        assert_ne!(before, lab.broker_pid().unwrap());
        let domains = lab.domains().unwrap();
        assert!(
            domains.iter().any(|domain| domain.name == "server"),
            "after kill={kill}: {domains:?}"
        );
        assert!(program.is_running());
    }
    program.stop().unwrap();
    assert_eq!(lab.close(), [""; 0]);
}
