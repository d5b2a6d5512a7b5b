//! `fordway-stackd-udp`: the same of a build without TCP. One that has TCP all the same is none.
#![forbid(unsafe_code)]

#[cfg(feature = "tcp")]
compile_error!(
    "fordway-stackd-udp has no TCP: build it by itself, with --no-default-features (./x build)"
);
// Cargo adds up what all crates of one build ask of the stack.
#[cfg(not(feature = "tcp"))]
const _: () = assert!(
    !fordway_netstack::HAS_TCP,
    "another crate of this build asks for TCP: build fordway-stackd-udp by itself"
);

fn main() -> anyhow::Result<()> {
    fordway_stackd::main()
}
