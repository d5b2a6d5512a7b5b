//! `fordway up` and `fordway down`: the broker's start and end.

use crate::broker::Broker;
use crate::cli::{Down, Up};
use crate::config;
use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use fordwayd::admin::{Reply, Request};
use std::path::Path;

/// `fordway up`.
pub fn up(up: &Up, runtime_dir: Option<&Path>) -> Outcome {
    let file = config::read(up)?;
    let runtime_dir = places::runtime_dir(runtime_dir.or(file.runtime_dir.as_deref()))?;
    if let Ok(info) = Broker::at(&runtime_dir).info() {
        let text = format!(
            "a broker already runs in {} (pid {})",
            runtime_dir.display(),
            info.pid
        );
        return Err(Failure::new(Exit::Taken, text));
    }
    crate::stopgap::serve(&runtime_dir)
}

/// `fordway down`.
pub fn down(down: &Down, broker: &Broker) -> Outcome {
    broker.ask(&Request::Down {
        keep_domains: down.keep_domains,
    })?;
    Ok(Exit::Done)
}
