//! The packet filter beside the kernel's.
//!
//! A generator makes rulesets and packets from a seed ([`generate`]). The ruleset goes to
//! the kernel as text (`nft -f`), and to the filter as the kernel then has it; the packets go
//! through a namespace that routes or bridges ([`kernel`]), and through a small router of our own
//! around the filter ([`router`]). What came out, with which bytes, and what every counter
//! says must be the same ([`compare`]). A difference is shrunk to the smallest ruleset and
//! the fewest packets that still show it.

pub mod compare;
pub mod generate;
pub mod kernel;
pub mod packets;
pub mod router;

use fordway_filter::rules::{self, Rules};
use fordway_filter::{Config, Filter};
use fordway_platform::nftables::{Scratch, Source};

/// Where rules are loaded to see what they become, one set of them after the other.
#[derive(Debug)]
pub struct Nft(Scratch);

impl Nft {
    /// Needs root.
    pub fn new() -> anyhow::Result<Nft> {
        Ok(Nft(Scratch::new()?))
    }

    /// What the kernel makes of a text.
    pub fn rules(&self, text: &str) -> anyhow::Result<Rules> {
        self.0
            .load(Source::text(&format!("flush ruleset\n{text}")))?;
        Ok(rules::read(&self.0.dump()?)?)
    }

    /// A filter with these rules in force.
    pub fn filter(&self, text: &str, config: Config) -> anyhow::Result<Filter> {
        let mut filter = Filter::new(config, 1);
        filter.replace(self.rules(text)?, 1, 1);
        Ok(filter)
    }
}
