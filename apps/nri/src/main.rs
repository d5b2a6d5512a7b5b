//! `fordway-nri`, the program: connects, and connects again whenever the runtime ends the connection or is
//! not there yet. Each new reason for that is logged once.
#![forbid(unsafe_code)]

use clap::Parser;
use fordway_nri::plugin::{Fordway, Plugin};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_secs(1);

/// Has the pods of this node join Fordway, as a plugin of containerd (NRI)
///
/// A pod joins if it has the annotation fordway.dev/net: "on", or lies in a namespace that --namespace names and has
/// no such annotation.
#[derive(Parser)]
#[command(name = "fordway-nri", version)]
struct Arguments {
    /// The runtime's socket for plugins
    #[arg(long, value_name = "FILE", default_value = "/var/run/nri/nri.sock")]
    socket: PathBuf,
    /// Pods of this Kubernetes namespace join (may be given several times)
    #[arg(long, value_name = "NAME")]
    namespace: Vec<String>,
    /// The broker's runtime directory, if it is not root's
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let fordway = Fordway {
        program: command(),
        runtime_dir: arguments.runtime_dir,
    };
    let needs = match fordway.needs() {
        Ok(needs) => needs,
        Err(reason) => {
            eprintln!("fordway-nri: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let plugin = Plugin {
        needs,
        fordway,
        namespaces: arguments.namespace,
    };
    let mut told = String::new();
    loop {
        let served = UnixStream::connect(&arguments.socket)
            .inspect(|_| eprintln!("fordway-nri: connected to the runtime"))
            .and_then(|socket| fordway_nri::serve(socket, &plugin));
        let reason = match served {
            Ok(()) => "the runtime has ended the connection".to_owned(),
            Err(error) => error.to_string(),
        };
        if reason != told {
            let socket = arguments.socket.display();
            eprintln!("fordway-nri: {socket}: {reason}; connecting again until it works");
            told = reason;
        }
        std::thread::sleep(AGAIN);
    }
}

/// The command `fordway` of the same installation, else the one in PATH.
fn command() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name("fordway"));
    beside
        .filter(|file| file.exists())
        .unwrap_or_else(|| "fordway".into())
}
