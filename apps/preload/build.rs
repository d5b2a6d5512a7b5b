//! The library needs no other one: neither glibc nor libgcc, so that the same
//! file loads into programs of glibc and of musl. `-z now` keeps the dynamic
//! linker out of signal handlers.
fn main() {
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,now",
        "-Wl,--hash-style=both",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
