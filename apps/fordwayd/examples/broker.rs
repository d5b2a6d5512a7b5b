//! A broker with nothing around it: `cargo run -p fordwayd --example broker -- RUNTIME_DIR`.

use std::net::Ipv4Addr;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Err(reason) = fordwayd::log::start("error") {
        eprintln!("broker: {reason}");
        return ExitCode::FAILURE;
    }
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: broker RUNTIME_DIR");
        return ExitCode::from(2);
    };
    let Some(network) = fordwayd::Network::new(Ipv4Addr::new(10, 77, 0, 0), 24) else {
        return ExitCode::FAILURE;
    };
    let config = fordwayd::Config {
        runtime_dir: dir.into(),
        network,
        network6: None,
        uplink: false,
        vsock: false,
        ring_bytes_max: 1 << 30,
        programs: fordwayd::Programs::default(),
        helpers: Vec::new(),
    };
    match fordwayd::run(&config, || println!("ready")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("broker: {error}");
            ExitCode::FAILURE
        }
    }
}
