//! iperf3 in both directions, with several streams, and both ways at once; by TCP and by UDP.

use super::datagrams::RINGS;
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, CLIENT_LIMIT, SERVER, Spawn, path_of};
use std::time::Instant;

const PORT: u16 = 5201;
/// Bytes that each run sends, in each direction that it has.
const RUN_BYTES: u64 = 256 << 20;
/// Of the bytes that a stream sent, what may still be on its way when iperf3 stops
/// counting: it does not wait for the last ones (seen over the kernel: 12 MB).
const IN_FLIGHT_BYTES_MAX: u64 = 24 << 20;
/// Of the test by UDP.
const DATAGRAM_PORT: u16 = 5202;
/// Bits a second of each stream: a receiver that gets no CPU for half a second still has room for what comes, in the
/// kernel's buffer too.
const DATAGRAM_RATE: &str = "2M";
/// Bytes of each stream: about a second.
const DATAGRAM_RUN_BYTES: u64 = 5 << 16;
/// What of these a run changes. The last: as fast as the sender can, and no telling how much is lost.
const DATAGRAM_RUNS: [&str; 7] = [
    "",
    "-R",
    "-P 4",
    "--bidir",
    "-l 200 -b 500K -n 60K",
    "-l 60000 -n 1M",
    UNBOUNDED,
];
const UNBOUNDED: &str = "-b 0 -n 256M";
/// Of a hundred datagrams.
const LOST_PERCENT_MAX: f64 = 10.0;
/// Of a server that writes into a file what it receives.
const CONTENTS_PORT: u16 = 5203;
/// Bytes of a datagram, and what else a run by it has. Against the other server the client is the receiver.
const CONTENTS_RUNS: [(usize, &str); 4] = [
    (1000, ""),
    (200, "-b 500K -n 60K"),
    (60000, "-n 1M"),
    (1000, "-R"),
];
/// In front of each datagram: seconds, microseconds, its number.
const STAMP_BYTES: usize = 12;

#[test]
fn iperf3() -> Result<()> {
    let Some(bed) = Bed::start("iperf3", &["iperf3"])? else {
        return Ok(());
    };
    let program = path_of("iperf3")?;
    let server = bed.serve(
        SERVER,
        PORT,
        Spawn::line(&format!("{program} -s -p {PORT}")),
    )?;
    let watch = bed.watch()?;
    let runs = [
        "",
        "-R",
        "-P 4",
        "-P 4 -R",
        "--bidir",
        "-P 2 --bidir",
        "-l 1000",
    ];
    let mut sent = 0;
    for options in runs {
        sent += run(&bed, &program, options)
            .with_context(|| format!("iperf3 -c {SERVER} {options}"))?;
    }
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, sent * 9 / 10)?;
    bed.stop(server)?;
    bed.finish(&line)
}

/// Of a client, which ends well whatever it says. The server closes its listener behind each client, and makes another
/// one: who comes in between is refused, and who comes before is told that it is busy.
fn report(bed: &Bed, client: Spawn) -> Result<serde_json::Value> {
    let end = Instant::now() + CLIENT_LIMIT;
    loop {
        let output = bed.run(client.clone())?;
        let report: serde_json::Value = serde_json::from_str(&output.text())?;
        if report["error"].is_null() {
            return Ok(report);
        }
        let error = report["error"].to_string();
        let passes = ["Connection refused", "busy"]
            .iter()
            .any(|word| error.contains(word));
        ensure!(passes && Instant::now() < end, "{error}");
    }
}

/// One run; how many bytes were received.
fn run(bed: &Bed, program: &str, options: &str) -> Result<u64> {
    let command = format!("{program} -c {SERVER} -p {PORT} -n {RUN_BYTES} -J {options}");
    let report = report(bed, Spawn::line(&command))?;
    let end = &report["end"];
    let streams = end["streams"].as_array().map_or(1, Vec::len) as u64;
    let in_flight_max = streams * IN_FLIGHT_BYTES_MAX;
    let mut received_in_all = 0;
    let mut check = |suffix: &str| -> Result<()> {
        let bytes = |name: &str| {
            end[format!("{name}{suffix}")]["bytes"]
                .as_u64()
                .with_context(|| format!("no {name}{suffix} in {end}"))
        };
        let (sent, received) = (bytes("sum_sent")?, bytes("sum_received")?);
        ensure!(
            received <= sent && sent - received <= in_flight_max && received > 0,
            "{sent} bytes sent, {received} received"
        );
        received_in_all += received;
        Ok(())
    };
    check("")?;
    if options.contains("--bidir") {
        check("_bidir_reverse")?;
    }
    ensure!(
        received_in_all + in_flight_max >= RUN_BYTES,
        "{received_in_all} bytes were received of {RUN_BYTES}"
    );
    Ok(received_in_all)
}

/// The server connects the socket that a first datagram came by, and binds another one to the port.
#[test]
fn iperf3_by_datagrams() -> Result<()> {
    let Some(bed) = Bed::start("iperf3 by UDP", &["iperf3"])? else {
        return Ok(());
    };
    let program = path_of("iperf3")?;
    let serve = Spawn::line(&format!("{program} -s -p {DATAGRAM_PORT}"));
    let server = bed.serve(SERVER, DATAGRAM_PORT, RINGS.of(serve))?;
    let watch = bed.watch()?;
    let mut lines = Vec::new();
    for options in DATAGRAM_RUNS {
        let line = run_datagrams(&bed, &program, options)
            .with_context(|| format!("iperf3 -u -c {SERVER} {options}"))?;
        lines.push(line);
    }
    let carried = watch.end(&bed)?;
    let domains = [SERVER, CLIENT];
    lines.push(carried.datagrams_at_both_ends(domains, DATAGRAM_PORT, DATAGRAM_RUN_BYTES)?);
    lines.push(contents(&bed, &program)?);
    bed.stop(server)?;
    bed.finish(&lines.join("; "))
}

/// Every byte of what is received, which iperf3 itself does not look at.
fn contents(bed: &Bed, program: &str) -> Result<String> {
    let got = bed.dir().join("got");
    let file = got.to_string_lossy();
    let serve = Spawn::line(&format!("{program} -s -p {CONTENTS_PORT} -F {file}"));
    let server = bed.serve(SERVER, CONTENTS_PORT, RINGS.of(serve))?;
    let watch = bed.watch()?;
    let mut blocks = 0;
    for (length, options) in CONTENTS_RUNS {
        let at = match options {
            "-R" => format!("-p {DATAGRAM_PORT} -F {file}"),
            _ => format!("-p {CONTENTS_PORT}"),
        };
        let options = format!("-l {length} {options} --repeating-payload {at}");
        let sent = datagrams_of(bed, program, &options)?.sent;
        let came = blocks_of(&std::fs::read(&got)?, length).with_context(|| options.clone())?;
        ensure!(
            came <= sent && came as f64 >= sent as f64 * (1.0 - LOST_PERCENT_MAX / 100.0),
            "{options}: {came} of {sent} datagrams are in the file"
        );
        blocks += came;
    }
    let carried = watch.end(bed)?;
    carried.datagrams_at_both_ends([SERVER, CLIENT], CONTENTS_PORT, DATAGRAM_RUN_BYTES)?;
    bed.stop(server)?;
    Ok(format!("{blocks} datagrams compared"))
}

/// How many datagrams of `length` bytes these are: in order, whole, and with iperf3's payload.
fn blocks_of(bytes: &[u8], length: usize) -> Result<u64> {
    let (mut blocks, mut last) = (0, 0);
    for block in bytes.chunks(length) {
        ensure!(block.len() == length, "datagram {blocks} was cut");
        let number = u32::from_be_bytes(block[8..STAMP_BYTES].try_into()?);
        ensure!(number > last, "datagram {number} came behind {last}");
        let expected = |place: usize| b'0' + (place % 10) as u8;
        let strange = (STAMP_BYTES..length).find(|place| block[*place] != expected(*place));
        ensure!(strange.is_none(), "datagram {number}, byte {strange:?}");
        (blocks, last) = (blocks + 1, number);
    }
    Ok(blocks)
}

/// What one run's report says of its streams.
struct Datagrams {
    lost: u64,
    sent: u64,
}

/// One run; how many datagrams were lost.
fn run_datagrams(bed: &Bed, program: &str, options: &str) -> Result<String> {
    let lost_percent_max = match options {
        UNBOUNDED => 99.0,
        _ => LOST_PERCENT_MAX,
    };
    let Datagrams { lost, sent } = datagrams_of(bed, program, options)?;
    ensure!(
        sent > 0 && lost as f64 <= sent as f64 * lost_percent_max / 100.0,
        "{lost} of {sent} datagrams were lost"
    );
    Ok(format!("{options} lost {lost} of {sent}"))
}

fn datagrams_of(bed: &Bed, program: &str, options: &str) -> Result<Datagrams> {
    // The last of two values counts.
    let command = format!(
        "{program} -u -c {SERVER} -p {DATAGRAM_PORT} -J \
         -b {DATAGRAM_RATE} -n {DATAGRAM_RUN_BYTES} {options}"
    );
    let report = report(bed, RINGS.of(Spawn::line(&command)))?;
    let streams = report["end"]["streams"].as_array().context("no streams")?;
    let (mut lost, mut sent) = (0, 0);
    for stream in streams {
        let of = |name: &str| {
            let figure = stream["udp"][name].as_u64();
            figure.with_context(|| format!("no {name} in {stream}"))
        };
        lost += of("lost_packets")?;
        sent += of("packets")?;
        ensure!(of("out_of_order")? == 0, "out of order: {stream}");
    }
    Ok(Datagrams { lost, sent })
}
