//! A stand-in until the broker's `run` exists: domains only.
use crate::exit::*;
use fordway_platform::fabric::Fabric;
use fordwayd::admin::*;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

pub fn serve(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).map_err(Failure::internal)?;
    let fabric = Fabric::ensure(dir).map_err(Failure::internal)?;
    let mut domains: Vec<Domain> = Vec::new();
    let to_domain =
        |id: usize, name: &str, ip, paths: &fordway_platform::fabric::DomainPaths| Domain {
            name: name.into(),
            id: id as u32 + 1,
            ip: Some(ip),
            prefix: 24,
            netns_cookie: paths.netns_cookie,
            netns_path: Some(paths.netns_path.display().to_string()),
            hosts_path: Some(paths.hosts_path.display().to_string()),
            processes: 0,
        };
    for found in fabric.existing().map_err(Failure::internal)? {
        domains.push(to_domain(
            domains.len(),
            &found.name,
            found.ip,
            &found.paths,
        ));
    }
    let socket = dir.join(ADMIN_SOCKET);
    let _ = std::fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).map_err(Failure::internal)?;
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut line = String::new();
        let _ = BufReader::new(&stream).read_line(&mut line);
        let error = |kind, message: String| Reply::Error { kind, message };
        let mut end = None;
        let reply = match serde_json::from_str(&line) {
            Ok(Request::Info) => serde_json::from_value(serde_json::json!({"reply":"info","schema":1,"version":"0.1.0",
                "abi_version":fordway_abi::ABI_VERSION,"pid":std::process::id(),"uid":0,"domains":true,"network":"10.77.0.0/24",
                "processes":0,"channels":0,"ring_bytes_total":0,"channels_total":0,"protocol_errors":0})).expect("info"),
            Ok(Request::DomainAdd { name, ip }) => match domains.iter().find(|d| d.name == name) {
                Some(domain) if ip.is_none() || ip == domain.ip => Reply::Domain(domain.clone()),
                Some(_) => error(ErrorKind::Taken, format!("\"{name}\" has another address")),
                None => {
                    let free = (2..255).map(|n| std::net::Ipv4Addr::new(10, 77, 0, n)).find(|ip| !domains.iter().any(|d| d.ip == Some(*ip)));
                    let ip = ip.or(free).expect("free");
                    match fabric.add_domain(&name, ip, 24) {
                        Ok(paths) => {
                            domains.push(to_domain(domains.len(), &name, ip, &paths));
                            let names: Vec<_> = domains.iter().map(|d| (d.name.as_str(), d.ip.expect("ip"))).collect();
                            let _ = fabric.write_hosts(&names);
                            Reply::Domain(domains.last().expect("it").clone())
                        }
                        Err(e) => error(ErrorKind::Internal, e.to_string()),
                    }
                }
            },
            Ok(Request::DomainList) => Reply::Domains { domains: domains.clone() },
            Ok(Request::DomainRemove { name, .. }) => match fabric.remove_domain(&name) {
                Ok(()) => { domains.retain(|d| d.name != name); Reply::Done }
                Err(e) => error(ErrorKind::NotFound, e.to_string()),
            },
            Ok(Request::Connections) => Reply::Connections { connections: vec![] },
            Ok(Request::Down { keep_domains }) => { end = Some(keep_domains); Reply::Done }
            _ => error(ErrorKind::BadInput, "not yet".into()),
        };
        let _ = writeln!(stream, "{}", serde_json::to_string(&reply).expect("json"));
        if let Some(keep) = end {
            if !keep {
                fabric.teardown().map_err(Failure::internal)?;
            }
            break;
        }
    }
    let _ = std::fs::remove_file(&socket);
    Ok(Exit::Done)
}
