//! What `fordway demo` takes. The command `fordway` has this file too, for its help, manual page
//! and completions: it checks the options, and `fordway-demo` gets them as they were given. Hence
//! nothing of the bench stands here.

use clap::Args;
use clap::builder::PossibleValuesParser;

/// Works that the demo can show: rows of the bench.
pub const WORKS: [&str; 5] = [
    "redis-get-c1",
    "redis-get-c50",
    "nginx-1k-c10",
    "nginx-64m-curl",
    "iperf3-128k",
];
/// Longest sample: a slip of the finger should not run for a day.
const SECONDS_MAX: f64 = 600.0;

/// Options of the demo.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Print one JSON document (with a schema version); what happens is told on stderr
    #[arg(long)]
    pub json: bool,
    /// Fewer works and one short sample of each: the whole demo in less than half a minute
    #[arg(long)]
    pub quick: bool,
    /// Measure only these works (comma-separated); the filter and the broker's end are shown in any case
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(WORKS)
    )]
    pub works: Vec<String>,
    /// Samples of each work and path [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub runs: Option<u16>,
    /// Length of one sample [default: 1; with --quick 0.5]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Hold servers to CPU 0 and clients to CPU 1 instead of letting the scheduler place them
    #[arg(long)]
    pub pinned: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| *seconds > 0.0 && *seconds <= SECONDS_MAX)
        .ok_or_else(|| format!("a number above 0, up to {SECONDS_MAX}, is expected"))
}
