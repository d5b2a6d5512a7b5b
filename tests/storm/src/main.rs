//! `fordway-test storm [NAME]`, and the roles that its programs play.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use fordway_test_storm::{Scale, Told, roles, storms};

/// Many connections, many deaths, and little of everything.
#[derive(Debug, Parser)]
#[command(name = "fordway-test")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let it storm: one by its name, or all but a day
    Storm {
        /// held, churn, kills, descriptors, memory, threads, stack or day
        name: Option<String>,
        /// Seconds, or as much as was promised
        #[arg(long, value_enum, default_value_t = Scale::Whole)]
        scale: Scale,
        #[command(flatten)]
        told: Told,
    },
    /// Play a part in a storm (started by it)
    #[command(hide = true, subcommand)]
    Role(roles::Role),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Role(role) => roles::play(&role),
        Command::Storm { name, scale, told } => {
            let known = |name: &String| storms::ALL.iter().any(|(known, ..)| known == name);
            ensure!(
                name.as_ref().is_none_or(known),
                "there is no such storm; there are: {}",
                storms::ALL.map(|(name, ..)| name).join(", ")
            );
            let binary = std::env::current_exe()?;
            let (mut passed, mut failed) = (0, 0);
            for (storm, ..) in storms::ALL {
                let played = match &name {
                    Some(name) => name == storm,
                    None => storm != storms::DAY,
                };
                if !played {
                    continue;
                }
                match storms::run(storm, &binary, (scale, &told)) {
                    Ok(()) => passed += 1,
                    Err(error) => {
                        println!("  FAILED: {error:#}");
                        failed += 1;
                    }
                }
            }
            println!("{passed} passed, {failed} failed");
            ensure!(failed == 0, "see above");
            Ok(())
        }
    }
}
