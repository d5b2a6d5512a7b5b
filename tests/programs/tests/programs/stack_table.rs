//! Programs of all kinds under a stack of their own, each asked by clients by the kernel, with rings to be had, and under a stack.
//! One table: a row is a server and what its clients do, as a shell says it. A client compares what it gets.

use anyhow::{Context, Result};
use fordway_bench::work::postgres;
use fordway_test_programs::{ASKER, Asks, Bed, CLIENT, STACK_IP, Spawn, Watch, path_of, script};
use rustix::process::Signal;
use std::fs;

const STACK: &str = "stack";
/// What all clients of all rows move by rings, at the least: to the server's stack, and past it.
const RING_BYTES: u64 = 400_000_000;
/// A client of the row with this port goes on until its rings are seen; those of a short connection come and go between two looks.
const LONG_PORT: u16 = 5201;
/// Again where the server is not there yet for it: see its row.
const LONG: &str = "while iperf3 -c $H -p $P -t 60 --bidir >/dev/null 2>$D/refusal & trap \"kill $!; wait $!; exit\" TERM; ! wait $!; do \
     grep -qE 'Connection refused|busy' $D/refusal; done";

/// A server and its clients.
struct Row {
    /// What it needs, the server first.
    programs: &'static [&'static str],
    port: u16,
    serve: Serve,
    /// What ends it.
    ends_by: Signal,
    /// Each is run by `bash -ec` with host, port, the bed's directory and that of the scripts as H, P, D and S;
    /// H4 is the host's address of IPv4.
    clients: &'static [&'static str],
}

enum Serve {
    /// As a client's: a line of a shell that ends in an exec.
    Line(&'static str),
    Made(fn(&Bed, u16) -> Result<Spawn>),
}

const ROWS: &[Row] = &[
    Row {
        programs: &["redis-server", "redis-cli", "redis-benchmark"],
        port: 6379,
        serve: Serve::Line("exec redis-server --port $P --save '' --protected-mode no"),
        ends_by: Signal::TERM,
        clients: &[
            "head -c 900000 $D/random | base64 >$D/value; redis-cli -h $H -x SET key <$D/value >/dev/null; \
             redis-cli -h $H --raw GET key | cmp - <(cat $D/value; echo)",
            "redis-benchmark -h $H -t set,get -n 4000 -c 50 -q | grep -c 'requests per second' | grep -qx 2",
        ],
    },
    Row {
        programs: &["memcached", "python3"],
        port: 11211,
        serve: Serve::Line("exec memcached -u root -l 0.0.0.0 -p $P -U $P -t 4 -m 256"),
        ends_by: Signal::TERM,
        clients: &[
            "python3 $S/memcached_client.py $H $P",
            // An answer in several datagrams, each of which says which it is.
            "printf 'set far 0 0 4096\\r\\n%s\\r\\nquit\\r\\n' $(head -c 3072 $D/random | base64 -w 0) >/dev/tcp/$H/$P; \
             python3 -c 'import socket, sys
far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
far.connect((sys.argv[1], int(sys.argv[2])))
far.settimeout(10)
for number in range(200):
    far.send(number.to_bytes(2, \"big\") + bytes([0, 0, 0, 1, 0, 0]) + b\"get far\\r\\n\")
    parts = {}
    while not parts or len(parts) < count:
        part = far.recv(65536)
        assert int.from_bytes(part[:2], \"big\") == number
        count = int.from_bytes(part[4:6], \"big\")
        parts[int.from_bytes(part[2:4], \"big\")] = part[8:]
    whole = b\"\".join(parts[place] for place in range(count))
    assert whole.startswith(b\"VALUE far 0 4096\") and whole.endswith(b\"END\\r\\n\") and len(whole) > 4110, whole' $H $P",
        ],
    },
    Row {
        programs: &["nginx", "curl", "ab"],
        port: 8001,
        serve: Serve::Made(nginx),
        ends_by: Signal::QUIT,
        clients: &[
            FETCH,
            "ab -q -k -c 8 -n 2000 http://$H:$P/1000 | grep -q 'Failed requests:        0'",
            "kill -HUP $(cat $D/nginx.pid)",
            FETCH,
        ],
    },
    Row {
        programs: &["python3", "curl"],
        port: 8002,
        serve: Serve::Line("cd $D; exec python3 -m http.server $P"),
        ends_by: Signal::TERM,
        clients: &["for round in 1 2 3; do curl -sSf http://$H:$P/10000000 | cmp - $D/10000000; done"],
    },
    Row {
        programs: &["python3"],
        port: 6103,
        serve: Serve::Line("exec python3 $S/echo_server.py asyncio $P"),
        ends_by: Signal::TERM,
        clients: &["python3 $S/echo_client.py asyncio $H $P"],
    },
    Row {
        programs: &["node"],
        port: 7001,
        serve: Serve::Line("exec node $S/http_server.js $P 3"),
        ends_by: Signal::TERM,
        clients: &["node $S/http_client.js $H $P"],
    },
    Row {
        programs: &["iperf3"],
        port: 5201,
        serve: Serve::Line("exec iperf3 -s -p $P"),
        ends_by: Signal::TERM,
        // It ends well even if it could not connect, and says so in its document. The server closes its listener behind each client,
        // and makes another one: who comes in between is refused, and who comes before is told that it is busy.
        clients: &[
            "for more in '' -R '-P 4' '-P 4 -R' '-u -b 50M -n 1M' '-u -b 50M -n 1M -R'; do \
             while iperf3 -c $H -p $P -n 64M --json $more >$D/report; grep -qE '\"error\".*(Connection refused|busy)' $D/report; do :; done; \
             ! grep '\"error\"' $D/report; grep -q '\"sum' $D/report; done",
        ],
    },
    Row {
        programs: &["unbound", "dig"],
        port: 5301,
        serve: Serve::Made(unbound),
        ends_by: Signal::TERM,
        clients: &[
            "for more in '+notcp' '+tcp' '+tcp -6' '-6'; do [ \"$(dig +short +time=10 +tries=1 $more -p $P @$H here.test)\" = 192.0.2.7 ]; done",
            // Too long for a datagram: it is asked for by TCP then.
            "[ $(dig +short +time=10 +tries=1 -p $P @$H long.test TXT | wc -l) = 40 ]",
        ],
    },
    Row {
        programs: &["setpriv"],
        port: 5432,
        serve: Serve::Made(|bed, port| postgres::server(&bed.dir(), "*", port)),
        // "Fast shutdown".
        ends_by: Signal::INT,
        clients: &[
            "$PG/pgbench -q -h $H4 -p $P -U postgres -i postgres",
            "$PG/pgbench -h $H4 -p $P -U postgres -c 8 -j 2 -t 40 postgres | grep -q 'processed: 320/320'",
            "$PG/pgbench -n -h $H4 -p $P -U postgres -c 8 -j 2 -t 5 -S -C postgres | grep -q 'processed: 40/40'",
            "$PG/psql -h $H4 -p $P -U postgres -XAtc 'SELECT g FROM generate_series(1, 300000) g' postgres | cmp - <(seq 300000)",
        ],
    },
];

const FETCH: &str = "for size in 1 1000 65537 1000000 10000000; do \
     curl -sSf http://$H:$P/$size http://$H:$P/$size | cmp - <(cat $D/$size $D/$size); done";

fn nginx(bed: &Bed, port: u16) -> Result<Spawn> {
    let dir = bed.dir().display().to_string();
    let config = format!(
        "daemon off; worker_processes 4; user root; pid {dir}/nginx.pid; error_log stderr;
events {{ worker_connections 512; }}
http {{
    access_log off; sendfile on; tcp_nopush on; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen 0.0.0.0:{port}; listen [::]:{port}; root {dir}; }}
}}
"
    );
    let file = bed.dir().join("nginx.conf");
    fs::write(&file, config)?;
    let (program, file) = (path_of("nginx")?, file.to_string_lossy());
    Ok(Spawn::new([&program, "-e", "stderr", "-c", &file]))
}

fn unbound(bed: &Bed, port: u16) -> Result<Spawn> {
    let long: String = (0..40)
        .map(|number| format!("local-data: 'long.test. TXT \"{number:0>180}\"'\n"))
        .collect();
    let config = format!(
        "server:\ninterface: 0.0.0.0\ninterface: ::0\nport: {port}\naccess-control: 0.0.0.0/0 allow\naccess-control: ::0/0 allow
num-threads: 2\ndo-daemonize: no\nusername: \"\"\nchroot: \"\"\npidfile: \"\"\nuse-syslog: no\nmodule-config: \"iterator\"
local-zone: \"test.\" static\nlocal-data: \"here.test. A 192.0.2.7\"\n{long}remote-control:\ncontrol-enable: no\n"
    );
    let file = bed.dir().join("unbound.conf");
    fs::write(&file, config)?;
    Ok(Spawn::new([
        &path_of("unbound")?,
        "-d",
        "-c",
        &file.to_string_lossy(),
    ]))
}

/// A line of a shell, with what it asks for.
fn line(bed: &Bed, text: &str, port: u16) -> Result<Spawn> {
    let scripts = script("");
    let postgres = postgres::program("psql")?;
    let postgres = postgres.rsplit_once('/').context("no directory")?.0;
    Ok(Spawn::new(["bash", "-o", "pipefail", "-ec", text])
        .env("H", STACK)
        .env("H4", &STACK_IP.map(|part| part.to_string()).join("."))
        .env("P", &port.to_string())
        .env("D", &bed.dir().to_string_lossy())
        .env("S", scripts.trim_end_matches('/'))
        .env("PG", postgres))
}

/// Ends once somebody listens.
const LISTENS: &str = "until (: >/dev/tcp/$H/$P) 2>/dev/null; do :; done";

fn play(bed: &Bed, watch: &Watch, row: &Row) -> Result<()> {
    let spawn = match row.serve {
        Serve::Line(text) => line(bed, text, row.port)?,
        Serve::Made(make) => make(bed, row.port)?,
    };
    let server = bed.serve_under_a_stack(STACK, spawn, "")?;
    bed.run_as(Asks::ByKernel, line(bed, LISTENS, row.port)?)?;
    for asks in [Asks::ByKernel, Asks::ByRings, Asks::ByStack] {
        for client in row.clients {
            bed.run_as(asks, line(bed, client, row.port)?)
                .with_context(|| format!("{asks:?}: {client}\n{}", server.stderr_so_far()))?;
        }
    }
    if row.port == LONG_PORT {
        for (asks, domain) in [(Asks::ByRings, CLIENT), (Asks::ByStack, ASKER)] {
            let long = bed.spawn_as(asks, line(bed, LONG, row.port)?)?;
            watch.until_rings(bed, [domain, STACK], row.port)?;
            bed.stop(long)?;
        }
    }
    bed.stop_by(server, row.ends_by)?;
    Ok(())
}

#[test]
fn stack_table() -> Result<()> {
    let programs = ROWS.iter().flat_map(|row| row.programs);
    let programs: Vec<&str> = programs.copied().collect();
    let Some(bed) = Bed::start("programs under stacks", &programs)? else {
        return Ok(());
    };
    fordway_test_programs::files::random(&bed.dir().join("random"), 1_000_000)?;
    for size in [1, 1000, 65_537, 1_000_000, 10_000_000] {
        let file = bed.dir().join(size.to_string());
        fordway_test_programs::files::random(&file, size)?;
    }
    let watch = bed.watch()?;
    for row in ROWS {
        let began = std::time::Instant::now();
        play(&bed, &watch, row).with_context(|| row.programs[0])?;
        println!(
            "{}: {:.1} s",
            row.programs[0],
            began.elapsed().as_secs_f64()
        );
    }
    let carried = watch.end(&bed)?;
    let line = carried.between_program_and_stack(STACK, RING_BYTES)?;
    for asker in [CLIENT, ASKER] {
        carried.rings_at_both_ends([asker, STACK], LONG_PORT, RING_BYTES)?;
    }
    bed.remove_domain(STACK)?;
    bed.remove_domain(ASKER)?;
    bed.finish(&line)
}
