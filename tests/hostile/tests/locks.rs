//! Locks of the kernel that a program can hold.

use anyhow::{Context, Result, ensure};
use fordway_abi::control::kind;
use fordway_platform::diag::{self, Detail};
use fordway_platform::ipc;
use fordway_test_hostile::mallory::{Mallory, hello};
use fordway_test_hostile::{Bed, Style, claim_named, compiled, is_root, until};
use rustix::net::sockopt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

/// How often he offers his socket.
const OFFERS: u64 = 20;

/// He offers a socket whose lock he holds: who asks the socket for its names waits for him.
#[test]
fn a_socket_whose_lock_is_held_holds_nobody_up() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut bed = Bed::start(Style::Epoll)?;
    let name = bed.victim.name;
    bed.case("a lock that is held", |bed| {
        let (own, theirs) = UnixStream::pair()?;
        let mut command = Command::new(compiled("holder"));
        command.args([name.ip().to_string(), name.port().to_string()]);
        command.stdin(OwnedFd::from(theirs));
        let mut holder = bed.at_home(|| command.spawn())??;
        // The command keeps its end, too.
        drop(command);
        let mut passed = None;
        until("the socket is passed", || {
            passed = ipc::receive(&own, &mut [0; 8], 1).ok();
            passed.is_some() || !matches!(holder.try_wait(), Ok(None))
        })?;
        let Some(mut packet) = passed else {
            println!("NOT TRIED: no userfaultfd");
            return Ok(());
        };
        let socket = packet.fds.remove(0);
        // The socket itself would not answer before its lock is free.
        let cookie = sockopt::socket_cookie(&socket)?;
        let rows = bed.at_home(|| diag::connected(Detail::Names))??;
        let row = rows.iter().find(|row| row.cookie == cookie);
        let row = row.context("the socket is not listed")?;
        let names = [Some(row.local), Some(row.remote)];
        // In a domain of his own, so that it is his time that is used up.
        let dir = bed.lab.runtime_dir();
        let (shim, _page) = bed.at_home(|| hello(&dir))??;
        let begin = Instant::now();
        for conn_id in 0..OFFERS {
            shim.claim(conn_id, claim_named(&socket, names));
            // What is asked about it needs no lock: the victim's end is paired with it.
            let answer = shim.receive().kind;
            let expected = match conn_id {
                0 => kind::Link,
                _ => kind::Reject,
            };
            ensure!(answer == expected, "message {answer}");
            // An honest one is served meanwhile.
            Mallory::join(bed)?.echo(10)?;
        }
        println!(
            "a lock that is held: {OFFERS} offers answered, {OFFERS} honest ones paired in {} ms",
            begin.elapsed().as_millis()
        );
        // Bytes of every socket are listed, under its lock.
        for _ in 0..2 {
            let listed = bed.lab.connections()?;
            ensure!(!listed.is_empty(), "nothing is listed");
            Mallory::join(bed)?.echo(10)?;
        }
        drop(own);
        holder.wait()?;
        Ok(())
    })?;
    bed.finish()
}
