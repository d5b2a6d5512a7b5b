//! Byte ring.
