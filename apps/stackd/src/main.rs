//! See [`fordway_stackd::main`].
#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    fordway_stackd::main()
}
