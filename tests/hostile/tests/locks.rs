//! Locks of the kernel that a program can hold.

use anyhow::{Result, ensure};
use fordway_abi::control as wire;
use fordway_abi::reason::Reason;
use fordway_platform::ipc;
use fordway_test_hostile::mallory::{Mallory, hello};
use fordway_test_hostile::{Bed, Style, compiled, is_root, until};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

/// How often he offers his socket.
const OFFERS: u64 = 20;

/// He offers a socket whose lock he holds: who asks the kernel for its names waits for him.
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
        // In a domain of his own, so that it is his time that is used up.
        let dir = bed.lab.runtime_dir();
        let (shim, _page) = bed.at_home(|| hello(&dir))??;
        let begin = Instant::now();
        for conn_id in 0..OFFERS {
            shim.offer(conn_id, &socket);
            let reject: wire::Reject = shim.expect();
            let told = Reason::from_u32(reject.reason);
            ensure!(told == Some(Reason::NoMemory), "{told:?}");
            // An honest one is served meanwhile.
            Mallory::join(bed)?.echo(10)?;
        }
        println!(
            "a lock that is held: {OFFERS} offers refused, {OFFERS} honest ones paired in {} ms",
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
