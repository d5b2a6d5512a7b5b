//! Each program of cases, on kernel TCP and on the fast path.

use anyhow::{Result, ensure};
use fordway_test_conformance::suite::{PROGRAMS, hold};

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() -> Result<()> {
            hold(stringify!($name))
        })*

        #[test]
        fn none_is_forgotten() -> Result<()> {
            ensure!(PROGRAMS == [$(stringify!($name)),*]);
            Ok(())
        }
    };
}

programs!(stream wait epoll among shared polls masks connect listen close down fork forks fds signals threads eintr handlers jumps actions cancel buffers flags low memory many moves ends held exec family cpus exports pointers aliases unseen kept udp_plain udp_many udp_peer udp_refused udp_bind udp_control udp_family udp_ready udp_share udp_signals udp_bad);
