//! What a program weighs without a network stack: see `./x features`.

fn main() {}
