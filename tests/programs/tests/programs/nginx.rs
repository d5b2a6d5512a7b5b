//! nginx with two workers, with and without sendfile, and curl, wrk and ab.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, Program, SERVER, Spawn, files, path_of};
use std::fs;
use std::path::Path;

/// Sizes of the documents, 1 B to 20 MB.
pub const DOCUMENT_BYTES: [u64; 8] = [
    1, 100, 1024, 16_384, 65_537, 1_000_000, 5_000_000, 20_000_000,
];

#[test]
fn nginx_with_sendfile() -> Result<()> {
    play("nginx (sendfile on)", "nginx", true, 8001)
}

#[test]
fn nginx_without_sendfile() -> Result<()> {
    play("nginx (sendfile off)", "nginx", false, 8002)
}

/// Everything, with this server.
pub fn play(name: &'static str, program: &str, sendfile: bool, port: u16) -> Result<()> {
    let Some(bed) = Bed::start(name, &[program, "curl", "wrk", "ab"])? else {
        return Ok(());
    };
    let server = start_program(&bed, program, port, sendfile)?;
    let watch = bed.watch()?;
    fetch_all(&bed, &format!("http://{SERVER}:{port}"), &[])?;
    fetch_all(&bed, &format!("http://{SERVER}:{port}"), &["--parallel"])?;
    put(&bed, port)?;
    wrk(&bed, &format!("http://{SERVER}:{port}/1024"))?;
    wrk(&bed, &format!("http://{SERVER}:{port}/65537"))?;
    ab(
        &bed,
        &format!("http://{SERVER}:{port}/16384"),
        "-k -c 8 -n 5000",
    )?;
    ab(&bed, &format!("http://{SERVER}:{port}/1024"), "-c 8 -n 500")?;
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], port, 100_000_000)?;
    let log = stop(&bed, server)?;
    ensure!(!log.contains("exited on signal"), "a worker died: {log}");
    bed.finish(&line)
}

/// Starts nginx in the domain of the servers, with the documents; `/N` has N bytes.
pub fn start(bed: &Bed, port: u16, sendfile: bool) -> Result<Program> {
    start_program(bed, "nginx", port, sendfile)
}

fn start_program(bed: &Bed, program: &str, port: u16, sendfile: bool) -> Result<Program> {
    let dir = bed.dir();
    let documents = documents(bed);
    fs::create_dir_all(&documents)?;
    for length in DOCUMENT_BYTES {
        files::random(&documents.join(length.to_string()), length)?;
    }
    let uploads = dir.join("uploads");
    fs::create_dir_all(&uploads)?;
    let id = |flag: &str| -> Result<u32> {
        let output = std::process::Command::new("id")
            .args([flag, "www-data"])
            .output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    std::os::unix::fs::chown(&uploads, Some(id("-u")?), Some(id("-g")?))?;
    let (dir, root, uploads) = (dir.display(), documents.display(), uploads.display());
    let sendfile = if sendfile { "on" } else { "off" };
    let config = format!(
        "daemon off; worker_processes 2; user www-data; pid {dir}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile {sendfile}; tcp_nopush on; keepalive_requests 1000000000;
    client_max_body_size 100m; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{
        listen 0.0.0.0:{port}; root {root};
        location /uploads/ {{ alias {uploads}/; dav_methods PUT; }}
    }}
}}
"
    );
    let file = bed.dir().join("nginx.conf");
    fs::write(&file, config)?;
    let program = path_of(program)?;
    let file = file.to_string_lossy();
    bed.serve(
        SERVER,
        port,
        Spawn::new([&program, "-e", "stderr", "-c", &file]),
    )
}

/// Stops nginx; what it has logged.
pub fn stop(bed: &Bed, server: Program) -> Result<String> {
    Ok(bed.stop(server)?.errors())
}

fn documents(bed: &Bed) -> std::path::PathBuf {
    bed.dir().join("documents")
}

/// Fetches every document twice with one curl, and compares each byte.
pub fn fetch_all(bed: &Bed, base: &str, options: &[&str]) -> Result<()> {
    let fetched = bed.dir().join("fetched");
    let mut argv = vec![path_of("curl")?, "-sSf".to_owned()];
    argv.extend(options.iter().map(|&option| option.to_owned()));
    let target = |round: usize, length: u64| fetched.join(format!("{length}-{round}"));
    for round in 0..2 {
        for length in DOCUMENT_BYTES {
            argv.push("-o".to_owned());
            argv.push(target(round, length).to_string_lossy().into_owned());
            argv.push(format!("{base}/{length}"));
        }
    }
    fs::create_dir_all(&fetched)?;
    bed.run(Spawn::new(argv))
        .with_context(|| format!("curl {options:?} {base}"))?;
    for round in 0..2 {
        for length in DOCUMENT_BYTES {
            let original = documents(bed).join(length.to_string());
            files::same(&target(round, length), &original)?;
        }
    }
    fs::remove_dir_all(&fetched)?;
    Ok(())
}

/// The other way: curl sends each document, nginx stores it.
fn put(bed: &Bed, port: u16) -> Result<()> {
    let mut argv = vec![path_of("curl")?, "-sSf".to_owned()];
    for length in DOCUMENT_BYTES {
        let document = documents(bed).join(length.to_string());
        argv.push("-T".to_owned());
        argv.push(document.to_string_lossy().into_owned());
        argv.push(format!("http://{SERVER}:{port}/uploads/{length}"));
    }
    bed.run(Spawn::new(argv)).context("curl -T")?;
    for length in DOCUMENT_BYTES {
        let of = |dir: &Path| dir.join(length.to_string());
        files::same(&of(&bed.dir().join("uploads")), &of(&documents(bed)))?;
    }
    Ok(())
}

/// A second of wrk; an error if one answer was wrong.
pub fn wrk(bed: &Bed, url: &str) -> Result<()> {
    let program = path_of("wrk")?;
    let output = bed.run(Spawn::line(&format!(
        "{program} -t2 -c10 -d1s --timeout 30s {url}"
    )))?;
    let text = output.text();
    let done: u64 = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
        .with_context(|| format!("wrk {url}: {text}"))?;
    ensure!(
        done > 100 && !text.contains("Non-2xx") && !text.contains("Socket errors"),
        "wrk {url}: {text}"
    );
    Ok(())
}

/// ab; an error if one answer was wrong or had another length.
pub fn ab(bed: &Bed, url: &str, options: &str) -> Result<()> {
    let program = path_of("ab")?;
    let output = bed.run(Spawn::line(&format!("{program} -q {options} {url}")))?;
    let text = output.text();
    let requests = options.rsplit(' ').next().unwrap_or_default();
    let complete = text.lines().any(|line| {
        line.strip_prefix("Complete requests:")
            .is_some_and(|count| count.trim() == requests)
    });
    ensure!(
        complete && text.contains("Failed requests:        0") && !text.contains("Non-2xx"),
        "ab {options} {url}: {text}"
    );
    Ok(())
}
