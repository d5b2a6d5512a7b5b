//! `fordway-stackd-udp`: the same of a build without TCP.
#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    fordway_stackd::main()
}
