//! The library needs no other one: neither glibc nor libgcc, so that the same
//! file loads into programs of glibc and of musl. `-z now` keeps the dynamic
//! linker out of signal handlers. `-Bsymbolic` binds the library's calls of its own names
//! to itself: a program may export a function of such a name, which calls ours in turn.
fn main() {
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,now",
        "-Wl,-Bsymbolic",
        "-Wl,--hash-style=both",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
