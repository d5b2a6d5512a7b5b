//! The kernel's side: a namespace with two cables, and the real nft.
//!
//! ```text
//!   routed:   a0 ══ b0 [ rules, routes ] c0 ══ d0
//!   bridged:  a0 ══ b0 [ br0, rules    ] c0 ══ d0
//! ```
//! Packets are put in at `a0` (left) and `d0` (right) and come out there; the stack of the
//! namespace never answers (a rule drops what it sends), so that nothing but our packets
//! meets the rules. What the namespace itself would take is noted by a set of packet
//! numbers behind all rules. One CPU does everything in order, so a frame that is not IP
//! tells when everything before it has been dealt with: one sent in tells it of the rules,
//! and one sent out behind it of the cables. That is done for each batch of packets, which is
//! small enough for the sockets' buffers and for the queue of the CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fordway_filter::rules::{self, Expr, Rules, Stateful};
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::nftables;
use fordway_platform::packet;
use rustix::event::{PollFd, PollFlags};

use crate::generate::Side;

pub const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
pub const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
pub const MAC_C: [u8; 6] = [2, 0, 0, 0, 0, 0x0c];
pub const MAC_D: [u8; 6] = [2, 0, 0, 0, 0, 0x0d];
/// Nobody's.
const MAC_END: [u8; 6] = [2, 0, 0, 0, 0, 0x0e];

/// IEEE 802 local experimental: nothing in the kernel takes them. The end of a batch on its
/// way in, and on its way out.
const END_IN: [u8; 2] = [0x88, 0xb5];
const END_OUT: [u8; 2] = [0x88, 0xb6];

/// Configuration testing (loopback): nothing in the kernel takes it either.
const PROBE: [u8; 2] = [0x90, 0];
const PROBE_EVERY: Duration = Duration::from_millis(2);

/// A frame that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Frames between two ends. A buffer of `net.core.rmem_default` (212,992 bytes) holds twice
/// as many of the largest.
pub const BATCH: usize = 50;

const HARNESS_TABLE: &str = "harness";

/// Notes what the namespace would take, and lets it say nothing.
const HARNESS: &str = "table inet harness {
  set seen4 { typeof ip id; flags dynamic; size 65535; }
  set seen6 { typeof ip6 flowlabel; flags dynamic; size 65535; }
  chain taken { type filter hook input priority 2147483646;
    add @seen4 { ip id }
    add @seen6 { ip6 flowlabel }
  }
  chain sent { type filter hook output priority -2147483647; policy drop; }
}
";

/// What became of packets, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Came out at a cable: from the IP header on.
    pub left: BTreeMap<u16, Vec<u8>>,
    pub right: BTreeMap<u16, Vec<u8>>,
    /// The namespace would have taken it itself.
    pub local: BTreeSet<u16>,
}

/// Rules in order, each with the counters in it as (packets, bytes).
pub type Counters = BTreeMap<String, Vec<(u64, u64)>>;

pub struct Lab {
    left: FrameFile,
    right: FrameFile,
    taps: [FrameFile; 2],
}

impl Lab {
    /// In the namespace of the calling thread, which is to be an empty one.
    pub fn new(bridged: bool) -> Result<Lab> {
        for (path, value) in [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv6/conf/default/addr_gen_mode", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            // The filter does not look at sequence numbers.
            ("netfilter/nf_conntrack_tcp_be_liberal", "1"),
        ] {
            std::fs::write(format!("/proc/sys/net/{path}"), value)
                .with_context(|| path.to_owned())?;
        }
        // Before there are interfaces: what the namespace says of itself about them (MLD
        // reports, for seconds) is not to meet the rules.
        input("nft", &["-f", "-"], HARNESS)?;
        let mut links = String::from(
            "link set lo up\n\
             link add a0 address 02:00:00:00:00:0a type veth peer name b0 address 02:00:00:00:00:0b\n\
             link add c0 address 02:00:00:00:00:0c type veth peer name d0 address 02:00:00:00:00:0d\n",
        );
        for name in ["a0", "b0", "c0", "d0"] {
            links += &format!("link set {name} arp off up\n");
        }
        links += match bridged {
            true => {
                "link add br0 type bridge forward_delay 0 mcast_snooping 0\n\
                     link set b0 master br0\nlink set c0 master br0\nlink set br0 arp off up\n"
            }
            false => {
                "addr add 10.200.0.1/32 dev lo\naddr add fd02::1/128 dev lo\n\
                      route add 10.0.0.0/9 dev b0\nroute add 10.201.0.0/16 dev c0\n\
                      route add fd00::/32 dev b0\nroute add fd01::/32 dev c0\n"
            }
        };
        input("ip", &["-batch", "-"], &links)?;
        for name in ["a0", "d0"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
        }
        // Sums are made and checked in software, as in a packet from outside.
        let lab = Lab {
            left: packet::open("a0")?,
            right: packet::open("d0")?,
            taps: [packet::open("b0")?, packet::open("c0")?],
        };
        lab.wait_for_cables()?;
        Ok(lab)
    }

    /// An interface that came up before its other end drops what it sends until the kernel's
    /// worker has seen the link.
    fn wait_for_cables(&self) -> Result<()> {
        let [inner_left, inner_right] = &self.taps;
        for (from, to) in [
            (&self.left, inner_left),
            (&self.right, inner_right),
            (inner_left, &self.left),
            (inner_right, &self.right),
        ] {
            let until = Instant::now() + PATIENCE;
            let mut buffer = [0; 2048];
            loop {
                from.send(&end_frame(PROBE), FrameNotes::default())?;
                wait_for_frame(to, PROBE_EVERY)?;
                match to.receive(&mut buffer)? {
                    Some((len, _)) if len >= 14 && buffer[12..14] == PROBE => break,
                    _ => ensure!(Instant::now() < until, "no link: {to:?}"),
                }
            }
        }
        Ok(())
    }

    /// Puts a ruleset in force in place of the one before. `false` if nft refuses it.
    pub fn load(&self, rules: &str) -> Result<bool> {
        let mut text = String::from("flush set inet harness seen4\nflush set inet harness seen6\n");
        for family in ["ip", "ip6", "inet", "bridge", "netdev"] {
            text += &format!("add table {family} t\ndelete table {family} t\n");
        }
        text += rules;
        Ok(input("nft", &["-f", "-"], &text).is_ok())
    }

    /// What is in force, as the kernel has it; without what belongs to the lab.
    pub fn rules(&self) -> Result<Rules> {
        let mut rules = self.all()?;
        rules.tables.retain(|table| table.name != HARNESS_TABLE);
        Ok(rules)
    }

    fn all(&self) -> Result<Rules> {
        let dump = nftables::dump_of_thread()?;
        Ok(rules::read(&dump)?)
    }

    /// Sends frames, and waits until all have been dealt with. Behind each [`BATCH`] an
    /// [`end_of_batch`] crosses the rules from either side.
    pub fn send(&self, frames: &[(Side, Vec<u8>)]) -> Result<Arrivals> {
        let mut arrivals = Arrivals::default();
        for batch in frames.chunks(BATCH) {
            for (side, frame) in batch {
                match side {
                    Side::Left => self.left.send(frame, FrameNotes::default())?,
                    Side::Right => self.right.send(frame, FrameNotes::default())?,
                }
            }
            self.left.send(&end_frame(END_IN), FrameNotes::default())?;
            self.right.send(&end_frame(END_IN), FrameNotes::default())?;
            for tap in &self.taps {
                read_to_end(tap, END_IN, |_| {})?;
            }
            for tap in &self.taps {
                tap.send(&end_frame(END_OUT), FrameNotes::default())?;
            }
            for (socket, arrived) in [
                (&self.left, &mut arrivals.left),
                (&self.right, &mut arrivals.right),
            ] {
                read_to_end(socket, END_OUT, |frame| arrived.extend(packet_of(frame)))?;
            }
        }
        Ok(arrivals)
    }

    /// What the rules have counted, and which packets the namespace took.
    pub fn read(&self, arrivals: &mut Arrivals) -> Result<Counters> {
        let mut counters = Counters::new();
        for table in self.all()?.tables {
            if table.name == HARNESS_TABLE {
                let elements = table.sets.iter().flat_map(|set| &set.elements);
                let number = |key: &[u8]| {
                    key.iter()
                        .fold(0u16, |sum, byte| sum << 8 | u16::from(*byte))
                };
                arrivals
                    .local
                    .extend(elements.map(|element| number(&element.key)));
                continue;
            }
            for chain in table.chains {
                let exprs = chain.rules.iter().flat_map(|rule| &rule.exprs);
                let counted = exprs.filter_map(|expr| match expr {
                    Expr::Stateful(Stateful::Counter { packets, bytes }) => {
                        Some((*packets, *bytes))
                    }
                    _ => None,
                });
                counters.insert(chain.name.clone(), counted.collect());
            }
        }
        Ok(counters)
    }
}

/// What comes behind the packets of a batch, on either side.
pub fn end_of_batch() -> [u8; 60] {
    end_frame(END_IN)
}

fn end_frame(kind: [u8; 2]) -> [u8; 60] {
    let mut end = [0; 60];
    end[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x0f]);
    end[6..12].copy_from_slice(&MAC_END);
    end[12..14].copy_from_slice(&kind);
    end
}

fn wait_for_frame(socket: &FrameFile, longest: Duration) -> Result<()> {
    let mut wait = [PollFd::new(socket, PollFlags::IN)];
    rustix::event::poll(&mut wait, Some(&longest.try_into()?))?;
    Ok(())
}

fn read_to_end(socket: &FrameFile, end: [u8; 2], mut take: impl FnMut(&[u8])) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; 2048];
    loop {
        match socket.receive(&mut buffer)? {
            Some((len, _)) if len >= 14 && buffer[12..14] == end => return Ok(()),
            Some((len, _)) => take(&buffer[..len]),
            None => {
                let left = until.saturating_duration_since(Instant::now());
                ensure!(!left.is_zero(), "the last frame never came: {socket:?}");
                wait_for_frame(socket, left)?;
            }
        }
    }
}

/// The packet's number, and its bytes from the IP header to the end that this says. Not those
/// of the namespace's own packets (MLD reports of new interfaces), which have number 0.
fn packet_of(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (kind, packet) = (frame.get(12..14)?, frame.get(14..)?);
    // A second VLAN tag stays in place.
    let (kind, packet) = match kind {
        [0x81, 0] => (packet.get(2..4)?, packet.get(4..)?),
        other => (other, packet),
    };
    let id_at = match kind {
        [8, 0] => 4,
        [0x86, 0xdd] => 2,
        _ => return None,
    };
    let id = u16::from_be_bytes(packet.get(id_at..id_at + 2)?.try_into().ok()?);
    (id != 0).then(|| (id, packet.to_vec()))
}

/// Frames that the host's CPUs have dropped because their queues were full
/// (`/proc/net/softnet_stat`, second column): they are shared with everybody.
pub fn dropped_by_cpus() -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/net/softnet_stat")?;
    let column = |line: &str| line.split(' ').nth(1).map(str::to_owned);
    Ok(text.lines().filter_map(column).collect())
}

/// What nft or ip may take before something is wrong with it.
const PROGRAM_LIMIT_S: &str = "60";

/// A program that is ended, and then named by [`checked`], if it takes too long.
fn limited(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PROGRAM_LIMIT_S, program]);
    command.args(arguments);
    command
}

fn checked(program: &str, output: Output) -> Result<Vec<u8>> {
    match output.status.code() {
        Some(0) => Ok(output.stdout),
        // timeout(1)
        Some(124 | 137) => bail!("{program} had not ended after {PROGRAM_LIMIT_S} s"),
        _ => bail!("{program}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Runs a program with this text as its input.
pub fn input(program: &str, arguments: &[&str], text: &str) -> Result<()> {
    let mut child = limited(program, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.to_owned())?;
    child
        .stdin
        .take()
        .context("no pipe")?
        .write_all(text.as_bytes())?;
    checked(program, child.wait_with_output()?).map(drop)
}
