//! Each program of scenarios, on the kernel path and on the fast path.

use anyhow::Result;
use fordway_test_shim::compare_all;

#[test]
fn stream() -> Result<()> {
    compare_all("stream")
}

#[test]
fn wait() -> Result<()> {
    compare_all("wait")
}

#[test]
fn close() -> Result<()> {
    compare_all("close")
}

#[test]
fn down() -> Result<()> {
    compare_all("down")
}

#[test]
fn fork() -> Result<()> {
    compare_all("fork")
}

#[test]
fn fds() -> Result<()> {
    compare_all("fds")
}

#[test]
fn signals() -> Result<()> {
    compare_all("signals")
}

#[test]
fn threads() -> Result<()> {
    compare_all("threads")
}
