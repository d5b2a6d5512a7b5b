//! nft's text into what the kernel makes of it.
//!
//! ```text
//!   text ── nft -f, in a network namespace made for it ──► kernel ──┬─ nft list ─► one text, nothing included
//!                                                                   └─ dump ─────► what nf_tables carries out
//! ```
//! Nobody here has an opinion about the language: what nft takes is taken, and what nft says about a
//! fault is what the user reads. The namespace has no devices but `lo` and those that chains name.
//!
//! Names are given to nft as definitions on its command line, so that lines keep their numbers. Which
//! of them nft cannot have (a word of its language, one that the text defines itself, perhaps in what
//! it includes), nft says: such a name is left out, and the text is read again.

use crate::fabric::output_in;
pub use crate::rules::dump_of_thread;
use crate::{netns, rules};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A name that a text of rules may use as a variable, and its address.
pub type Name = (String, IpAddr);

/// Why rules were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// nft refuses them: all that it says, a line for each fault first.
    #[error("{0}")]
    Refused(String),
    /// Something that nft needs is missing.
    #[error(transparent)]
    Tool(#[from] crate::fabric::FabricError),
    /// A system call failed.
    #[error("loading rules into a namespace of their own: {0}")]
    Io(#[from] io::Error),
}

/// What is loaded. nft reads it from a pipe, so that a user's file may be one, too.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    pub text: &'s str,
    /// What nft's messages name, such as a file; empty for none.
    pub name: &'s str,
    /// Where `include` looks beside nft's own directory.
    pub include: &'s [PathBuf],
    /// What `$name` means unless the text says so itself.
    pub names: &'s [Name],
}

impl<'s> Source<'s> {
    /// A text that nobody wrote by hand, and which includes nothing.
    pub fn text(text: &'s str) -> Source<'s> {
        Source {
            text,
            name: "",
            include: &[],
            names: &[],
        }
    }
}

/// A network namespace with rules.
#[derive(Debug)]
pub struct Scratch {
    namespace: OwnedFd,
}

impl Scratch {
    /// An empty one. Needs CAP_SYS_ADMIN: an ordinary user's process first moves to a user namespace
    /// of its own ([`own_user_namespace`]).
    pub fn new() -> Result<Scratch, LoadError> {
        let namespace = netns::anonymous()?;
        Ok(Scratch { namespace })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Makes a device, so that rules and chains can name it.
    pub fn add_device(&self, name: &str, index: Option<u32>) -> Result<(), LoadError> {
        let index = index.map(|index| index.to_string());
        let mut args = vec!["link", "add", name];
        if let Some(index) = &index {
            args.extend(["index", index]);
        }
        // Of a kind that the fabric needs as well: not every kernel has dummies.
        args.extend(["type", "bridge"]);
        self.run("ip", &args, None).map(drop)
    }

    /// Carries out the commands of `source` on what is there, all or none.
    pub fn load(&self, source: Source<'_>) -> Result<(), LoadError> {
        if source.text.is_empty() {
            return Ok(());
        }
        self.add_devices_of(source.text)?;
        let mut args: Vec<String> = Vec::new();
        let json = source.text.trim_start().starts_with('{');
        if json {
            args.push("-j".into());
        }
        for dir in source.include {
            args.extend(["-I".into(), dir.display().to_string()]);
        }
        args.extend(["-f".into(), "-".into()]);
        let mut names: Vec<&Name> = source.names.iter().filter(|_| !json).collect();
        loop {
            let defined = names
                .iter()
                .map(|(name, ip)| format!("--define={name}={ip}"));
            let defined: Vec<String> = defined.collect();
            let all: Vec<&str> = defined.iter().chain(&args).map(String::as_str).collect();
            let said = match self.run("nft", &all, Some(source.text)) {
                Err(LoadError::Refused(said)) => said,
                other => return other.map(drop),
            };
            if let Some(at) = refused_name(&said, &names) {
                names.remove(at);
            } else if source.name.is_empty() {
                return Err(LoadError::Refused(said));
            } else {
                let said = said.replace("/dev/stdin:", &format!("{}:", source.name));
                return Err(LoadError::Refused(said));
            }
        }
    }

    /// What is there, as nft lists it.
    pub fn list(&self) -> Result<String, LoadError> {
        self.run("nft", &["list", "ruleset"], None)
    }

    /// The same as libnftables' JSON.
    pub fn list_json(&self) -> Result<String, LoadError> {
        self.run("nft", &["-j", "list", "ruleset"], None)
    }

    /// What is there, as the kernel's own messages.
    pub fn dump(&self) -> Result<Vec<u8>, LoadError> {
        Ok(rules::dump(self.fd())?)
    }

    /// Chains of hooks ingress and egress name devices, which the kernel must have.
    fn add_devices_of(&self, text: &str) -> Result<(), LoadError> {
        for name in devices_of(text) {
            match self.add_device(&name, None) {
                // It is there already, or no name of a device: nft says so.
                Ok(()) | Err(LoadError::Refused(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    fn run(
        &self,
        program: &'static str,
        args: &[&str],
        input: Option<&str>,
    ) -> Result<String, LoadError> {
        let output = output_in(self.fd(), program, args, input)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(LoadError::Refused(said.trim_end().to_owned()))
            }
        }
    }
}

/// Which of the names nft did not take, by what it says: one that the text defines as well, or one
/// of which a mark under nft's own line of definitions shows that it is no word for a variable.
fn refused_name(said: &str, names: &[&Name]) -> Option<usize> {
    let defined_twice = said.lines().find_map(|line| {
        let (_, rest) = line.split_once("redefinition of symbol '")?;
        let (name, _) = rest.split_once('\'')?;
        names.iter().position(|(known, _)| known == name)
    });
    defined_twice.or_else(|| {
        // Faults of the text itself begin with where they are.
        let mut lines = said.lines().skip_while(|line| !line.starts_with("Error: "));
        let definitions = lines.nth(1).filter(|line| line.starts_with("define "))?;
        let mark = lines.next()?.find('^')?;
        let before = definitions.get(..=mark)?;
        // Each definition begins with the word; the mark lies in the last that has begun.
        let at = before.matches("define ").count().checked_sub(1)?;
        (at < names.len()).then_some(at)
    })
}

/// Names behind `device` and `devices =`.
fn devices_of(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    let mut names = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        while let Some(at) = rest.find("device") {
            rest = rest[at + "device".len()..].trim_start_matches('s');
            let stretch = rest.split([';', '}']).next().unwrap_or("");
            let words = stretch.split(|c: char| !is_name(c));
            let named = stretch.trim_start().starts_with(['"', '=', '{'])
                || stretch.starts_with([' ', '\t']);
            if named {
                let until = |word: &&str| !matches!(*word, "priority" | "policy");
                names.extend(
                    words
                        .take_while(until)
                        .filter(|word| !word.is_empty())
                        .map(str::to_owned),
                );
            }
        }
    }
    names
}

/// Moves this process, which has one thread, to a user namespace in which it may make network
/// namespaces (user_namespaces(7)). Nothing is done for who may already.
pub fn own_user_namespace() -> io::Result<()> {
    if netns::anonymous().is_ok() {
        return Ok(());
    }
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    // SAFETY: no descriptor table is shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER)? };
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

#[cfg(test)]
mod tests {
    use super::{Name, devices_of, refused_name};

    #[test]
    fn the_name_that_nft_did_not_take_is_found() {
        let names = ["web", "ip", "db-1"].map(|name| (name.to_owned(), [10, 77, 0, 2].into()));
        let names: Vec<&Name> = names.iter().collect();
        let no_word = "Error: syntax error, unexpected ip, expecting string\n\
            define web=10.77.0.2; define ip=10.77.0.2; define db-1=10.77.0.2; \n\
            \u{20}                            ^^\n";
        assert_eq!(refused_name(no_word, &names), Some(1));
        let twice = "/dev/stdin:3:8-12: Error: redefinition of symbol 'db-1'\n\
            define db-1 = 10.0.0.1\n       ^^^^^\n";
        assert_eq!(refused_name(twice, &names), Some(2));
        assert_eq!(refused_name(&twice.replace("db-1", "other"), &names), None);
        assert_eq!(
            refused_name(
                &twice.replace("redefinition of symbol", "unknown identifier"),
                &names[..1]
            ),
            None
        );
    }

    #[test]
    fn devices_that_chains_name_are_found() {
        let text = "table netdev t {
            chain a { type filter hook ingress device \"eth0\" priority 0; }
            chain b { type filter hook ingress devices = { p-0a4d0004, lo } priority 0; policy drop; }
            chain c { type filter hook forward priority 0; }
        }";
        assert_eq!(devices_of(text), ["eth0", "p-0a4d0004", "lo"]);
    }
}
