//! Packets made by hand, over the live fabric: none walks around the rules.

use anyhow::{Context, Result, ensure};
use fordway_lab::{Place, Spawn, Stdin};
use fordway_platform::fabric::{Fabric, port_of};
use fordway_test_enforce::{Bed, db, guest, program, web};
use std::io::Write;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
/// Whom the rules refuse: an echo of `db`. And where nobody listens, which they leave open.
const SERVER: &str = "10.77.0.3:7000";
const OPEN_PORT: u16 = 7001;

/// Port 7000 is refused, port 7001 let pass: in words that differ in what they look at.
const RULESETS: [(&str, &str); 5] = [
    (
        "a port refused",
        "table inet t {
           chain c { type filter hook forward priority 0; policy accept;
             tcp dport 7000 counter drop
           }
         }",
    ),
    (
        "a port refused for connections",
        "table inet t {
           chain c { type filter hook forward priority 0; policy accept;
             ct state new tcp dport 7000 counter drop
           }
         }",
    ),
    (
        "a port let pass",
        "table ip t {
           chain c { type filter hook input priority 0; policy drop;
             ct state established accept
             tcp dport 7001 counter accept
           }
         }",
    ),
    (
        "a port let pass, packet by packet",
        "table ip t {
           chain c { type filter hook forward priority 0; policy drop;
             tcp dport 7001 counter accept
             tcp sport 7001 counter accept
           }
         }",
    ),
    (
        "a port refused in the bridge",
        "table bridge t {
           chain c { type filter hook forward priority 0; policy accept;
             tcp dport 7000 counter drop
           }
         }",
    ),
];

/// What `craft` says became of each shape.
fn crafted(bed: &Bed) -> Result<Vec<(String, bool)>> {
    let words = format!("craft {} {SERVER} {OPEN_PORT}", guest().ip());
    let output = bed.spawn(&guest(), &program(&words, BINARY))?.finish()?;
    let output = output.ok()?;
    let lines = output.text();
    let lines = lines.lines().filter_map(|line| line.split_once(' '));
    Ok(lines
        .map(|(shape, what)| (shape.to_owned(), what == "answered"))
        .collect())
}

/// A SYN in one piece or in fragments, tiny, overlapping or behind options: what the receiver
/// would take for one is refused, and what is let pass arrives.
#[test]
fn a_port_is_not_reached_by_fragments() -> Result<()> {
    let Some(bed) = Bed::start("fragments")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    // Without rules all that mean one thing are answered, so the receiver understands them.
    let free = crafted(&bed)?;
    println!("no rules: {free:?}");
    for shape in ["whole", "options", "tiny", "reversed", "options-tiny"] {
        ensure!(
            free.contains(&(shape.to_owned(), true)),
            "{shape}: {free:?}"
        );
    }
    for (what, rules) in RULESETS {
        bed.load_text(&format!("{rules}\n"), false)?;
        let seen = crafted(&bed)?;
        println!("{what}: {seen:?}");
        ensure!(seen.len() == free.len(), "{what}: {seen:?}");
        ensure!(
            seen.iter().all(|(_, answered)| !answered),
            "{what}: {seen:?}"
        );
    }
    echo.stop()?;
    bed.finish()
}

/// Frames with the address, the MAC or the ARP answer of somebody else, and frames that the
/// rules of families ip and inet would not see, for they are tagged: none leaves the port.
#[test]
fn a_frame_that_is_not_the_ports_own_does_not_pass() -> Result<()> {
    let Some(bed) = Bed::start("forged")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let fabric = Fabric::open(&bed.lab.runtime_dir())?.context("no fabric")?;
    let spoofed = || -> Result<u64> { Ok(fabric.spoofed_frames(&port_of(guest().ip()))?) };
    let before = spoofed()?;
    let words = format!("forge {} {SERVER} {}", guest().ip(), web().ip());
    let output = bed.spawn(&guest(), &program(&words, BINARY))?.finish()?;
    let output = output.ok()?;
    print!("{}", output.text());
    let sent = output.text().lines().count() as u64;
    bed.lab.wait_until(LIMIT, "all frames are dropped", || {
        Ok(spoofed()? >= before + sent)
    })?;
    ensure!(spoofed()? == before + sent);
    echo.stop()?;
    bed.finish()
}

/// The same of IPv6, where a domain's kernel says by itself who it is. What its neighbours know of
/// each other stays as it was, and nobody becomes their router.
#[test]
fn a_lie_about_neighbours_does_not_pass() -> Result<()> {
    let Some(bed) = Bed::start("forged6")? else {
        return Ok(());
    };
    let [server, client, liar] = [db(), web(), guest()].map(|place| bed.six(&place));
    let [server, client, liar] = [server?, client?, liar?];
    let fabric = Fabric::open(&bed.lab.runtime_dir())?.context("no fabric")?;
    let spoofed = || -> Result<u64> { Ok(fabric.spoofed_frames(&port_of(liar))?) };
    // They know each other before, by entries that a lie could change: found by who asks for them, as
    // domains do whose root wants it so.
    let network = std::net::Ipv6Addr::from_bits(liar.to_bits() >> 64 << 64);
    for place in [db(), web(), guest()] {
        let words = format!("ip -6 route add {network}/64 dev eth0 metric 1");
        bed.try_run(&place, &words)?.ok()?;
    }
    bed.try_run(&db(), &format!("ping -6 -c 1 {client}"))?
        .ok()?;
    bed.try_run(&guest(), &format!("ping -6 -c 1 {server}"))?
        .ok()?;
    let before = spoofed()?;
    ensure!(before == 0, "a domain's own packets are {before} lies");
    let words = format!("forge6 {liar} {server} {client}");
    let output = bed.spawn(&guest(), &program(&words, BINARY))?.finish()?;
    let output = output.ok()?;
    let lies = output.text().matches("lie ").count() as u64;
    ensure!(lies == 19, "{}", output.text());
    bed.lab
        .wait_until(LIMIT, "all lies are dropped", || Ok(spoofed()? >= lies))?;
    ensure!(spoofed()? == lies, "{} of {lies}", spoofed()?);
    let neighbours = bed.try_run(&db(), "ip -6 neigh show")?.ok()?.text();
    let known = |line: &str| {
        let [ip, mac] = [client.to_string(), "02:46:0a:4d:00:04".to_owned()];
        line.starts_with(&format!("{ip} ")) && line.contains(&mac)
    };
    ensure!(neighbours.lines().any(known), "{neighbours}");
    let leads = "fe80::46:ff:fe00:0 dev eth0 lladdr 02:46:00:00:00:00 PERMANENT";
    ensure!(neighbours.contains(leads), "{neighbours}");
    let routes = bed.try_run(&db(), "ip -6 route show default")?.ok()?.text();
    ensure!(routes.is_empty(), "{routes}");
    bed.finish()
}

/// What rings between two colluding ends would walk around: whether a rule tracks
/// connections or not, and whichever packet of the handshake it refuses.
const NO_HANDSHAKE: [(&str, &str); 3] = [
    (
        "only what is established passes",
        "table inet t {
           chain c { type filter hook forward priority 0; policy drop;
             ct state established accept
           }
         }",
    ),
    (
        "no first packet passes",
        "table ip t {
           chain c { type filter hook forward priority 0;
             tcp flags & (syn | ack) == syn drop
           }
         }",
    ),
    (
        "no answer to a first packet passes",
        "table ip t {
           chain c { type filter hook forward priority 0;
             tcp flags & (syn | ack) == (syn | ack) drop
           }
         }",
    ),
];

/// The roots of two domains each give the other's address to their own loopback and
/// connect to themselves. The outer sockets mirror each other, each with its own domain's
/// address, and no packet of a handshake has met the rules: they get no rings.
#[test]
fn mirrored_sockets_without_a_handshake_get_no_rings() -> Result<()> {
    let Some(bed) = Bed::start("collude")? else {
        return Ok(());
    };
    for (place, far) in [(db(), web()), (web(), db())] {
        let words = format!("ip addr add {}/32 dev lo", far.ip());
        bed.try_run(&place, &words)?.ok()?;
    }
    for (at, (what, rules)) in NO_HANDSHAKE.into_iter().enumerate() {
        bed.load_text(&format!("{rules}\n"), false)?;
        // Names of their own: those of the round before are in TIME-WAIT.
        let [server, client] = [(db(), 7100), (web(), 7200)].map(|(place, port)| {
            let port = (port + at).to_string();
            (place.ip().to_string(), port)
        });
        let collude = |place, own: &(String, String), far: &(String, String), role| -> Result<_> {
            let script = ["python3", "-c", include_str!("../src/collude.py")];
            let words = [&own.0, &own.1, &far.0, &far.1].map(String::as_str);
            let words = script.into_iter().chain(words).chain([role]);
            let spawn = Spawn::new(words)
                .env("FORDWAY_OFFER_AFTER", "0")
                .stdin(Stdin::Pipe)
                .time_limit(LIMIT);
            let ends = bed.spawn(&place, &spawn)?;
            ends.wait_for_output("up")?;
            Ok(ends)
        };
        let mut accepts = collude(db(), &server, &client, "accept")?;
        let mut connects = collude(web(), &client, &server, "connect")?;
        let [server, client] = [server, client].map(|(ip, port)| format!("{ip}:{port}"));
        // The broker has found the two outer ends, and asked the rules.
        bed.lab.wait_until(LIMIT, what, || {
            let mut held = false;
            for (domain, local) in [("db", &server), ("web", &client)] {
                let rows = bed.connections_of(domain)?;
                let outer = rows.into_iter().find(|row| row.local == *local);
                let outer = outer.context("no outer end")?;
                ensure!(outer.path == "kernel", "{what}: {outer:?}");
                held |= outer.reason.as_deref() == Some("filter");
            }
            Ok(held)
        })?;
        for ends in [&mut connects, &mut accepts] {
            let mut stdin = ends.take_stdin().context("no input")?;
            writeln!(stdin)?;
        }
        for ends in [connects, accepts] {
            let output = ends.finish()?.ok()?;
            ensure!(output.text().contains("own"), "{what}: {}", output.text());
        }
    }
    bed.finish()
}

/// The rules say of a first packet only that a limit decides. A connection whose handshake
/// the kernel has let pass gets its rings: its connection tracking shows that.
#[test]
fn a_handshake_that_the_kernel_has_seen_is_enough() -> Result<()> {
    let Some(bed) = Bed::start("handshake")? else {
        return Ok(());
    };
    bed.load_text(
        "table inet t {
           chain c { type filter hook forward priority 0; policy drop;
             ct state established accept
             ct state new limit rate 100/second accept
           }
         }\n",
        false,
    )?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let mut talker = bed.spawn(&web(), &program(&format!("talk {SERVER} 1"), BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.wait_for_rings("web", 1)?;
    drop(talker.take_stdin());
    talker.finish()?.ok()?;
    echo.stop()?;
    bed.finish()
}

/// Root in a domain may ask the broker, but cannot keep others from asking it.
#[test]
fn a_domain_cannot_take_the_places_of_administrators() -> Result<()> {
    const CONNECTIONS: &str = r#"
import socket, sys
held, refused = [], 0
for _ in range(80):
    end = socket.socket(socket.AF_UNIX)
    end.connect(sys.argv[1])
    try:
        end.sendall(b'{"op":"info"}\n')
    except BrokenPipeError:
        pass  # It was told why before it asked.
    refused += b"too many" in end.recv(65536)
    held.append(end)
print("refused", refused, flush=True)
sys.stdin.read()
"#;
    let Some(bed) = Bed::start("places")? else {
        return Ok(());
    };
    let socket = bed.lab.runtime_dir().join("admin.sock");
    let socket = socket.to_str().context("no UTF-8")?;
    let hold = |place: &Place| -> Result<_> {
        let spawn = Spawn::new(["python3", "-c", CONNECTIONS, socket])
            .stdin(Stdin::Pipe)
            .time_limit(LIMIT);
        let holder = bed.spawn(place, &spawn)?;
        holder.wait_for_output("refused")?;
        Ok(holder)
    };
    let places = [guest(), web(), db()];
    let holders = places.iter().map(hold).collect::<Result<Vec<_>>>()?;
    for holder in &holders {
        // Each of them has had a few.
        ensure!(
            holder.stdout_so_far() == "refused 76\n",
            "{}",
            holder.stdout_so_far()
        );
    }
    // The administrator still has one, from outside.
    ensure!(bed.rules()?.epoch == 0);
    for mut holder in holders {
        drop(holder.take_stdin());
        holder.finish()?.ok()?;
    }
    bed.finish()
}
