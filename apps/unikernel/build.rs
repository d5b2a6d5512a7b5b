//! Links the image by the guest's linker script.
fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xen/xen-guest/image.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    for argument in [
        "-static",
        "-no-pie",
        "--gc-sections",
        "--build-id=none",
        "-zmax-page-size=4096",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
