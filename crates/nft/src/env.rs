//! What rules name and only the host knows: interfaces, services, users, groups.
use crate::prelude::*;
use hashbrown::HashMap;

/// Names of the host. Empty names are fine: then numbers have to be written.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Interfaces by name, with the index that `iif` and `oif` compare.
    pub interfaces: Vec<(String, u32)>,
    /// Ports, beyond those that are built in.
    pub services: HashMap<String, u16>,
    /// Users.
    pub users: HashMap<String, u32>,
    /// Groups.
    pub groups: HashMap<String, u32>,
    /// The text is a listing of the kernel's rules, which may be there by other words: nft lists
    /// rules for two protocols at once, though it takes none.
    pub listed: bool,
}

impl Env {
    /// Of the host, as far as it can be read: /sys/class/net, /etc/services, /etc/passwd,
    /// /etc/group.
    #[cfg(feature = "std")]
    pub fn system() -> Env {
        let mut env = Env::default();
        for entry in std::fs::read_dir("/sys/class/net")
            .into_iter()
            .flatten()
            .flatten()
        {
            let index = std::fs::read_to_string(entry.path().join("ifindex"))
                .ok()
                .and_then(|text| text.trim().parse().ok());
            if let (Ok(name), Some(index)) = (entry.file_name().into_string(), index) {
                env.interfaces.push((name, index));
            }
        }
        env.services = services(&read("/etc/services"));
        env.users = third_column(&read("/etc/passwd"));
        env.groups = third_column(&read("/etc/group"));
        env
    }

    /// The index of an interface.
    pub fn interface(&self, name: &str) -> Option<u32> {
        self.interfaces
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, index)| *index)
    }

    /// The name of an interface.
    pub fn interface_name(&self, index: u32) -> Option<&str> {
        self.interfaces
            .iter()
            .find(|(_, known)| *known == index)
            .map(|(name, _)| name.as_str())
    }
}

#[cfg(feature = "std")]
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// `name port/protocol alias...`
#[cfg(feature = "std")]
fn services(text: &str) -> HashMap<String, u16> {
    let mut out = HashMap::new();
    for line in text.lines() {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or("")
            .split_ascii_whitespace();
        let (Some(name), Some(port)) = (words.next(), words.next()) else {
            continue;
        };
        let Some(port) = port.split('/').next().and_then(|port| port.parse().ok()) else {
            continue;
        };
        for name in core::iter::once(name).chain(words) {
            out.entry(name.to_string()).or_insert(port);
        }
    }
    out
}

/// `name:x:number:...`
#[cfg(feature = "std")]
fn third_column(text: &str) -> HashMap<String, u32> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split(':');
            let name = parts.next()?;
            let number = parts.nth(1)?.parse().ok()?;
            Some((name.to_string(), number))
        })
        .collect()
}
