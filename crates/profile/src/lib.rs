//! Ticks per procedure, log2 histograms and a log in memory.
#![no_std]
#![forbid(unsafe_code)]
