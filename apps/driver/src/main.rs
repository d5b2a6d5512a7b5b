//! `fordway-driver CONFIG_FD`: a driver in a process of its own. The broker starts it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    fordway_driver::main()
}
