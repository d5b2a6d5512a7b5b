//! Between two domains, over IPv6 and over IPv4: what moves bytes and what ends them. All programs are played
//! so by `./x conformance --between`.

use anyhow::Result;
use fordway_test_conformance::Between::{Four, Six};
use fordway_test_conformance::suite::hold_between;

#[test]
fn stream_over_ipv6() -> Result<()> {
    hold_between(Six, "stream")
}

#[test]
fn close_over_ipv6() -> Result<()> {
    hold_between(Six, "close")
}

#[test]
fn stream_over_ipv4() -> Result<()> {
    hold_between(Four, "stream")
}
