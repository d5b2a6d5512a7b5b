//! haproxy between curl, wrk or ab and nginx: it is a server to the one and a client
//! to the other, in a domain of its own.

use crate::nginx;
use anyhow::{Result, ensure};
use fordway_test_programs::{Bed, CLIENT, PROXY, SERVER, Spawn, path_of};
use std::fs;

const NGINX_PORT: u16 = 8001;
/// Requests are understood and passed on.
const HTTP_PORT: u16 = 9001;
/// Bytes are passed on.
const TCP_PORT: u16 = 9002;
/// Bytes are passed on by splice(2), which only the kernel carries.
const SPLICE_PORT: u16 = 9003;

#[test]
fn haproxy() -> Result<()> {
    let Some(bed) = Bed::start("haproxy", &["haproxy", "nginx", "curl", "wrk", "ab"])? else {
        return Ok(());
    };
    let server = nginx::start(&bed, NGINX_PORT, true)?;
    let config = format!(
        "global
    maxconn 200
defaults
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen http
    mode http
    bind 0.0.0.0:{HTTP_PORT}
    server nginx 10.77.0.11:{NGINX_PORT}
listen tcp
    mode tcp
    bind 0.0.0.0:{TCP_PORT}
    server nginx 10.77.0.11:{NGINX_PORT}
listen splice
    mode tcp
    option splice-request
    option splice-response
    bind 0.0.0.0:{SPLICE_PORT}
    server nginx 10.77.0.11:{NGINX_PORT}
"
    );
    let file = bed.dir().join("haproxy.cfg");
    fs::write(&file, config)?;
    let program = path_of("haproxy")?;
    let argv = [program.as_str(), "-db", "-f", &file.to_string_lossy()];
    let proxy = bed.serve(PROXY, HTTP_PORT, Spawn::new(argv))?;
    let mut lines = Vec::new();
    for port in [HTTP_PORT, TCP_PORT] {
        let url = format!("http://{PROXY}:{port}");
        let watch = bed.watch()?;
        nginx::fetch_all(&bed, &url, &[])?;
        nginx::wrk(&bed, &format!("{url}/1024"))?;
        nginx::ab(&bed, &format!("{url}/16384"), "-k -c 8 -n 2000")?;
        let carried = watch.end(&bed)?;
        // Every byte goes through two connections.
        let line = carried.rings_at_both_ends([PROXY, CLIENT], port, 100_000_000)?;
        carried.rings_at_both_ends([SERVER, PROXY], NGINX_PORT, 100_000_000)?;
        lines.push(line);
    }
    nginx::fetch_all(&bed, &format!("http://{PROXY}:{SPLICE_PORT}"), &[])?;
    bed.stop(proxy)?;
    let log = nginx::stop(&bed, server)?;
    ensure!(!log.contains("exited on signal"), "a worker died: {log}");
    bed.finish(&lines.join("; "))
}
