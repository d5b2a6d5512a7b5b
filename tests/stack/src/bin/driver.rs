//! The driver, where the tests find it: cargo builds no other package's program for them.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    fordway_driver::main()
}
