//! Programs of C look for the library by this name (`./x native`).
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfordway-native.so");
}
