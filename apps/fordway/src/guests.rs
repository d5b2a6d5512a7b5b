//! `fordway guests`: which guests of Xen may have channels to each other. dom0 says so, and is alone believed.
//!
//! ```text
//!   /local/domain/<domid>/name                          xl's
//!                        /fordway/address               the guest's own IPv4 address, and further ones behind a comma each
//!                        /fordway/peers/<other domid>   the other's, if the two may meet
//! ```
//! Further ones are addresses or networks that the guest routes to its namespaces; the syntax is [`GuestAddresses`]'s.
//!
//! A command reads what XenStore has of all guests, makes of it what is to be ([`State`], without I/O),
//! and writes the nodes that differ. So the same command again writes nothing, and no guest's watch fires.
//!
//! **Who may do what.** The nodes are dom0's, and their guest alone may read them. A new node has the permissions
//! of the one above it (xenstored: construct_node), so directories get theirs while they are empty;
//! a node that was there gets them before its value. At no moment can a guest write one, or another guest read it.
//!
//! **Death.** A guest's directory goes with the guest, but not what its peers have of it. An entry counts
//! only if both guests have each other's address, as dom0 has it. Whatever else is there is listed, and goes at
//! the next change. A domid is not given again before 32752 others, and a guest that is restarted has a new one.

use crate::cli::Guests;
use crate::exit::{Exit, Failure, Outcome};
use crate::show::print;
use crate::table::Table;
use fordway_xen_user::{Domain, Error, Store};
use fordwayd::GuestAddresses;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::str::FromStr;

const DOM0: Domain = 0;
/// Held while nodes are changed.
const LOCK: &str = "/run/fordway-guests.lock";
/// All domains' directories.
const DOMAINS: &str = "/local/domain";
const ADDRESS: &str = "address";
const PEERS: &str = "peers";

/// A guest and the addresses that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    name: String,
    addresses: GuestAddresses,
}

impl FromStr for Party {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, addresses) = text.rsplit_once('=').unwrap_or_default();
        if name.is_empty() {
            return Err("give a guest's name and its IPv4 address, as web=10.0.0.2".into());
        }
        let addresses = addresses.parse::<GuestAddresses>().map_err(|error| {
            format!("{error}; give it as web=10.0.0.2, or web=10.0.0.2,10.0.0.16/28")
        })?;
        let name = name.to_owned();
        Ok(Party { name, addresses })
    }
}

/// Values of the nodes below `fordway`, by guest and path.
type Nodes = BTreeMap<(Domain, String), String>;

/// Who may meet whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// The guests that run, by xl's names.
    names: BTreeMap<Domain, String>,
    addresses: BTreeMap<Domain, GuestAddresses>,
    /// The lower number first.
    pairs: BTreeSet<(Domain, Domain)>,
}

/// `fordway guests ...`.
pub fn guests(command: &Guests) -> Outcome {
    match command {
        Guests::Meet { guests } => {
            once_each(guests)?;
            change(|state| state.meet(guests))
        }
        Guests::Part { names } => change(|state| state.part(names)),
        Guests::List => {
            let (names, nodes) = look(&mut open()?)?;
            print(&listing(&State::of(names, &nodes), &nodes).render_cut(&[0, 2, 3]))
        }
    }
}

/// What the command line itself says twice.
fn once_each(guests: &[Party]) -> Result<(), Failure> {
    for (at, one) in guests.iter().enumerate() {
        let before = &guests[..at];
        let twice = |what: &str| {
            let text =
                format!("{what} is given twice; each guest has a name and addresses of its own");
            Err(Failure::new(Exit::Usage, text))
        };
        if before.iter().any(|other| other.name == one.name) {
            return twice(&one.name);
        }
        let mut shared = before.iter();
        if let Some(shared) = shared.find_map(|other| one.addresses.shared_with(&other.addresses)) {
            return twice(&shared);
        }
    }
    Ok(())
}

impl State {
    /// Of what XenStore has; the guests that `names` has are those that are there.
    fn of(names: BTreeMap<Domain, String>, nodes: &Nodes) -> State {
        let value = |domain: Domain, path: String| {
            let value = nodes.get(&(domain, path))?;
            value.parse::<GuestAddresses>().ok()
        };
        let mut state = State::default();
        for &domain in names.keys() {
            if let Some(address) = value(domain, ADDRESS.to_owned()) {
                state.addresses.insert(domain, address);
            }
        }
        for (&one, addresses) in &state.addresses {
            for (&other, its) in state.addresses.iter().filter(|(other, _)| **other > one) {
                let both = value(one, peer(other)).as_ref() == Some(its)
                    && value(other, peer(one)).as_ref() == Some(addresses);
                if both {
                    state.pairs.insert((one, other));
                }
            }
        }
        State { names, ..state }
    }

    /// What XenStore is to have.
    fn nodes(&self) -> Nodes {
        let addresses = self.addresses.iter();
        let own = addresses.map(|(&domain, own)| ((domain, ADDRESS.to_owned()), own));
        let both = self
            .pairs
            .iter()
            .flat_map(|&(low, high)| [(low, high), (high, low)]);
        let peers = both.map(|(one, other)| ((one, peer(other)), &self.addresses[&other]));
        own.chain(peers)
            .map(|(node, addresses)| (node, addresses.to_string()))
            .collect()
    }

    /// All of these may meet each other, at these addresses. Whom they might meet before, they still may.
    fn meet(&mut self, guests: &[Party]) -> Result<(), Failure> {
        let domains = guests.iter().map(|guest| self.find(&guest.name));
        let domains = domains.collect::<Result<Vec<_>, _>>()?;
        for (domain, guest) in domains.iter().zip(guests) {
            self.addresses.insert(*domain, guest.addresses.clone());
        }
        // Of those that were not named, for the named ones differ.
        for (&other, addresses) in self
            .addresses
            .iter()
            .filter(|(domain, _)| !domains.contains(domain))
        {
            for guest in guests {
                let Some(shared) = guest.addresses.shared_with(addresses) else {
                    continue;
                };
                let name = &self.names[&other];
                let text = format!(
                    "{shared} of {} is guest \"{name}\"'s; take it away with: fordway guests part {name}",
                    guest.name
                );
                return Err(Failure::new(Exit::Taken, text));
            }
        }
        for one in &domains {
            let higher = domains.iter().filter(|other| *other > one);
            self.pairs.extend(higher.map(|other| (*one, *other)));
        }
        Ok(())
    }

    /// None of these may meet anybody.
    fn part(&mut self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            let domain = self.find(name)?;
            self.addresses.remove(&domain);
            self.pairs
                .retain(|(low, high)| *low != domain && *high != domain);
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Domain, Failure> {
        let mut found = self.names.iter().filter(|(_, one)| *one == name);
        match (found.next(), found.next()) {
            (Some((domain, _)), None) => Ok(*domain),
            (Some(_), Some(_)) => {
                let text =
                    format!("several guests are called \"{name}\"; rename one with: xl rename");
                Err(Failure::new(Exit::NotFound, text))
            }
            (None, _) => {
                let text = format!("there is no guest \"{name}\"; see: fordway guests list");
                Err(Failure::new(Exit::NotFound, text))
            }
        }
    }
}

fn peer(domain: Domain) -> String {
    format!("{PEERS}/{domain}")
}

/// A row for each guest.
fn listing(state: &State, nodes: &Nodes) -> Table<'static> {
    let counting = state.nodes();
    let mut table = Table::new(&["NAME", "ID", "ADDRESS", "MAY MEET"], &[1]);
    for (&domain, name) in &state.names {
        let addresses = state.addresses.get(&domain);
        let peers = nodes.keys().filter_map(|node| {
            let (_, path) = Some(node).filter(|(whose, _)| *whose == domain)?;
            let other = path.strip_prefix(PEERS)?.strip_prefix('/')?;
            let known = counting
                .contains_key(node)
                .then(|| other.parse().ok())
                .flatten();
            let known = known.and_then(|other: Domain| state.names.get(&other));
            Some(known.cloned().unwrap_or_else(|| format!("({other})")))
        });
        let peers: Vec<String> = peers.collect();
        let dash = || "-".to_owned();
        table.row([
            name.clone(),
            domain.to_string(),
            addresses.map_or_else(dash, GuestAddresses::to_string),
            if peers.is_empty() {
                dash()
            } else {
                peers.join(", ")
            },
        ]);
    }
    table
}

/// Makes of what is there what `with` says.
fn change(with: impl FnOnce(&mut State) -> Result<(), Failure>) -> Outcome {
    let mut store = open()?;
    // One at a time: each reads, and writes the difference.
    let lock = std::fs::File::create(LOCK)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| Failure::internal(format!("{LOCK}: {error}")));
    let _lock = lock?;
    let (names, before) = look(&mut store)?;
    let mut state = State::of(names, &before);
    with(&mut state)?;
    let after = state.nodes();
    let gone = before.keys().filter(|node| !after.contains_key(*node));
    for (domain, path) in gone {
        there(store.remove(&node(*domain, path)))?;
    }
    let new = after
        .iter()
        .filter(|(node, value)| before.get(*node) != Some(*value));
    let mut told = BTreeSet::new();
    for ((domain, path), value) in new {
        if told.insert(*domain) {
            make_directories(&mut store, *domain)?;
        }
        publish(&mut store, *domain, path, value)?;
    }
    for domain in told {
        if there(store.read(&format!("{DOMAINS}/{domain}/name")))?.is_none() {
            let name = &state.names[&domain];
            forget(&mut store, domain)?;
            let text =
                format!("guest \"{name}\" has ended meanwhile; run it again without that one");
            return Err(Failure::new(Exit::NotFound, text));
        }
    }
    Ok(Exit::Done)
}

fn node(domain: Domain, path: &str) -> String {
    format!("{DOMAINS}/{domain}/fordway/{path}")
}

/// Where a guest's nodes lie, empty at first.
fn make_directories(store: &mut Store, domain: Domain) -> Result<(), Failure> {
    for directory in [format!("{DOMAINS}/{domain}/fordway"), node(domain, PEERS)] {
        if there(store.read(&directory))?.is_none() {
            store.write(&directory, "").map_err(failure)?;
        }
        there(permit(store, &directory, domain))?;
    }
    Ok(())
}

/// One node, which has its permissions before its value.
fn publish(store: &mut Store, domain: Domain, path: &str, value: &str) -> Result<(), Failure> {
    let path = node(domain, path);
    there(permit(store, &path, domain))?;
    store.write(&path, value).map_err(failure)
}

/// dom0 owns it, nobody else may anything but the guest, which may read.
fn permit(store: &mut Store, path: &str, domain: Domain) -> Result<(), Error> {
    store.set_permissions(path, &[&format!("n{DOM0}"), &format!("r{domain}")])
}

/// Removes what was written into the directory of a guest that had ended.
fn forget(store: &mut Store, domain: Domain) -> Result<(), Failure> {
    there(store.remove(&format!("{DOMAINS}/{domain}/fordway")))?;
    let home = format!("{DOMAINS}/{domain}");
    match there(store.directory(&home))? {
        Some(left) if left.is_empty() => there(store.remove(&home)).map(drop),
        _ => Ok(()),
    }
}

fn open() -> Result<Store, Failure> {
    let mut store = Store::open().map_err(failure)?;
    // A path without a slash at its front begins at the caller's own directory.
    match store.read("domid").map_err(failure)?.trim() {
        "0" => Ok(store),
        own => {
            let text = format!("this is guest {own}, and dom0 says who may meet; run it in dom0");
            Err(Failure::new(Exit::Privilege, text))
        }
    }
}

/// The guests, by number, and the nodes that they have of us. One may end meanwhile.
fn look(store: &mut Store) -> Result<(BTreeMap<Domain, String>, Nodes), Failure> {
    let (mut names, mut nodes) = (BTreeMap::new(), Nodes::new());
    for entry in store.directory(DOMAINS).map_err(failure)? {
        let Some(domain) = entry.parse().ok().filter(|domain| *domain != DOM0) else {
            continue;
        };
        let Some(name) = there(store.read(&format!("{DOMAINS}/{domain}/name")))? else {
            continue;
        };
        names.insert(domain, name);
        let peers = there(store.directory(&node(domain, PEERS)))?.unwrap_or_default();
        let peers = peers.into_iter().map(|peer| format!("{PEERS}/{peer}"));
        for path in peers.chain([ADDRESS.to_owned()]) {
            if let Some(value) = there(store.read(&node(domain, &path)))? {
                nodes.insert((domain, path), value);
            }
        }
    }
    Ok((names, nodes))
}

/// `None`: there is no such node.
fn there<T>(answer: Result<T, Error>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::Refused(word)) if word == "ENOENT" => Ok(None),
        Err(error) => Err(failure(error)),
    }
}

fn failure(error: Error) -> Failure {
    use io::ErrorKind as Kind;
    match &error {
        Error::Device(_, cause) if cause.kind() == Kind::PermissionDenied => {
            Failure::new(Exit::Privilege, format!("{error}; run it as root in dom0"))
        }
        Error::Device(_, cause) if cause.kind() == Kind::NotFound => Failure::new(
            Exit::Missing,
            format!("{error}: there is no Xen here; run it in dom0"),
        ),
        Error::Refused(word) if word == "EACCES" => {
            Failure::new(Exit::Privilege, format!("{error}; run it in dom0"))
        }
        _ => Failure::internal(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guests by their numbers, which run.
    fn running(names: &[(Domain, &str)], nodes: &Nodes) -> State {
        let names = names
            .iter()
            .map(|(domain, name)| (*domain, (*name).to_owned()));
        State::of(names.collect(), nodes)
    }

    fn parties(words: &[&str]) -> Vec<Party> {
        let parsed = words.iter().map(|word| word.parse());
        parsed.collect::<Result<_, _>>().expect("they are parties")
    }

    fn meet(state: &mut State, words: &[&str]) -> Result<(), Exit> {
        let guests = parties(words);
        state.meet(&guests).map_err(|failure| failure.exit)
    }

    /// As lines `domid path value`.
    fn lines(nodes: &Nodes) -> Vec<String> {
        let line = |((domain, path), value): (&(Domain, String), &String)| {
            format!("{domain} {path} {value}")
        };
        nodes.iter().map(line).collect()
    }

    const THREE: [(Domain, &str); 3] = [(1, "web"), (2, "db"), (9, "log")];

    #[test]
    fn a_party_is_a_name_and_an_address() {
        for addresses in [
            "10.0.0.2",
            "10.0.0.2,10.0.0.3",
            "10.0.0.2,10.0.0.16/28,10.1.0.0/16",
        ] {
            let party: Party = format!("a=b={addresses}")
                .parse()
                .expect("the last sign counts");
            assert_eq!(
                (party.name.as_str(), party.addresses.to_string()),
                ("a=b", addresses.to_owned())
            );
        }
        for wrong in [
            "web",
            "web=",
            "=10.0.0.2",
            "web=10.0.0",
            "web=10.0.0.256",
            "web=::1",
            "web=10.0.0.2/24",
            "web=0.0.0.0",
            "web=127.0.0.1",
            "web=224.0.0.1",
            "web=255.255.255.255",
            "web=10.0.0.2,",
            "web=,10.0.0.2",
            "web=10.0.0.2,10.0.0.17/28",
            "web=10.0.0.16/28,10.0.0.2",
            "web=10.0.0.2,log",
            "",
        ] {
            assert!(wrong.parse::<Party>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_given_twice() {
        let refused = |words: &[&str]| once_each(&parties(words)).map_err(|failure| failure.exit);
        assert_eq!(refused(&["web=10.0.0.2", "db=10.0.0.3"]), Ok(()));
        assert_eq!(refused(&["web=10.0.0.2", "web=10.0.0.3"]), Err(Exit::Usage));
        assert_eq!(refused(&["web=10.0.0.2", "db=10.0.0.2"]), Err(Exit::Usage));
        let within = ["web=10.0.0.2,10.1.0.0/16", "db=10.0.0.3,10.1.2.0/24"];
        assert_eq!(refused(&within), Err(Exit::Usage));
        assert_eq!(
            refused(&["web=10.0.0.2,10.0.0.0/28", "db=10.0.0.32"]),
            Ok(())
        );
        // Of one guest it means nothing else.
        assert_eq!(refused(&["web=10.0.0.2,10.0.0.0/28"]), Ok(()));
    }

    #[test]
    fn all_that_are_named_meet_and_what_was_there_stays() {
        let mut state = running(&THREE, &Nodes::new());
        meet(&mut state, &["db=10.0.0.3", "web=10.0.0.2"]).expect("they meet");
        let two = [
            "1 address 10.0.0.2",
            "1 peers/2 10.0.0.3",
            "2 address 10.0.0.3",
            "2 peers/1 10.0.0.2",
        ];
        assert_eq!(lines(&state.nodes()), two);
        // What was written is read, and the same again changes nothing.
        let mut again = running(&THREE, &state.nodes());
        assert_eq!(again, state);
        meet(&mut again, &["web=10.0.0.2", "db=10.0.0.3"]).expect("they meet");
        assert_eq!(again, state);

        meet(&mut state, &["log=10.0.0.9", "db=10.0.0.3"]).expect("they meet");
        assert_eq!(state.pairs, BTreeSet::from([(1, 2), (2, 9)]));
        // A new address reaches every peer.
        meet(&mut state, &["db=10.0.0.4", "log=10.0.0.9"]).expect("they meet");
        assert_eq!(state.nodes()[&(1, peer(2))], "10.0.0.4");
        // Two may exchange theirs.
        meet(&mut state, &["db=10.0.0.9", "log=10.0.0.4"]).expect("they meet");
        state.part(&["db".into()]).expect("it is there");
        assert_eq!(
            lines(&state.nodes()),
            ["1 address 10.0.0.2", "9 address 10.0.0.4"]
        );
    }

    #[test]
    fn further_addresses_are_told_and_no_other_guest_has_them() {
        let mut state = running(&THREE, &Nodes::new());
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3,10.0.0.16/28"]).expect("they meet");
        let two = [
            "1 address 10.0.0.2",
            "1 peers/2 10.0.0.3,10.0.0.16/28",
            "2 address 10.0.0.3,10.0.0.16/28",
            "2 peers/1 10.0.0.2",
        ];
        assert_eq!(lines(&state.nodes()), two);
        assert_eq!(running(&THREE, &state.nodes()), state);
        for taken in [
            "10.0.0.17",
            "10.0.0.9,10.0.0.31",
            "10.0.0.9,10.0.0.0/16",
            "10.0.0.9,10.0.0.24/29",
        ] {
            let refused = meet(
                &mut state.clone(),
                &["web=10.0.0.2", &format!("log={taken}")],
            );
            assert_eq!(refused, Err(Exit::Taken), "{taken}");
        }
        // Without them they are free.
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3"]).expect("they meet");
        assert_eq!(state.nodes()[&(1, peer(2))], "10.0.0.3");
        meet(&mut state, &["web=10.0.0.2", "log=10.0.0.17"]).expect("they meet");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut state = running(&THREE, &Nodes::new());
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3"]).expect("they meet");
        let refused = |words: &[&str]| meet(&mut state.clone(), words);
        assert_eq!(
            refused(&["web=10.0.0.2", "mail=10.0.0.5"]),
            Err(Exit::NotFound)
        );
        assert_eq!(refused(&["web=10.0.0.2", "log=10.0.0.3"]), Err(Exit::Taken));
        assert_eq!(refused(&["web=10.0.0.3", "log=10.0.0.9"]), Err(Exit::Taken));
        let parted = state.part(&["mail".into()]).map_err(|failure| failure.exit);
        assert_eq!(parted, Err(Exit::NotFound));
        let twins = running(&[(1, "web"), (2, "web")], &Nodes::new());
        assert_eq!(
            twins.find("web").map_err(|failure| failure.exit),
            Err(Exit::NotFound)
        );
    }

    #[test]
    fn what_a_guest_has_left_behind_is_shown_and_goes() {
        let mut state = running(&THREE, &Nodes::new());
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3", "log=10.0.0.9"]).expect("they meet");
        // Guest 2 was started again as 10; XenStore has taken its directory away.
        let mut nodes = state.nodes();
        nodes.retain(|(domain, _), _| *domain != 2);
        let now = [(1, "web"), (9, "log"), (10, "db")];
        let mut state = running(&now, &nodes);
        let text = listing(&state, &nodes).render();
        let expected = "\
NAME  ID  ADDRESS   MAY MEET
web    1  10.0.0.2  (2), log
log    9  10.0.0.9  web, (2)
db    10  -         -
";
        assert_eq!(text, expected);
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3"]).expect("they meet");
        let lines = lines(&state.nodes());
        assert!(
            lines.iter().all(|line| !line.contains("peers/2 ")),
            "{lines:?}"
        );
        assert_eq!(state.pairs, BTreeSet::from([(1, 9), (1, 10)]));
    }

    #[test]
    fn half_an_entry_or_another_address_counts_for_nothing() {
        let mut state = running(&THREE, &Nodes::new());
        meet(&mut state, &["web=10.0.0.2", "db=10.0.0.3"]).expect("they meet");
        let whole = state.nodes();
        for node in whole.keys() {
            let mut nodes = whole.clone();
            nodes.remove(node);
            assert!(running(&THREE, &nodes).pairs.is_empty(), "{node:?}");
            nodes.insert(node.clone(), "10.0.0.77".into());
            assert!(running(&THREE, &nodes).pairs.is_empty(), "{node:?}");
            nodes.insert(node.clone(), String::new());
            assert!(running(&THREE, &nodes).pairs.is_empty(), "{node:?}");
        }
    }

    #[test]
    fn each_refusal_has_a_status_of_its_own() {
        let exit = |error| failure(error).exit;
        let device = |kind: io::ErrorKind| Error::Device("/dev/xen/xenbus", kind.into());
        assert_eq!(exit(device(io::ErrorKind::NotFound)), Exit::Missing);
        assert_eq!(
            exit(device(io::ErrorKind::PermissionDenied)),
            Exit::Privilege
        );
        assert_eq!(exit(Error::Refused("EACCES".into())), Exit::Privilege);
        assert_eq!(exit(Error::Silent), Exit::Internal);
        assert!(matches!(
            there::<()>(Err(Error::Refused("ENOENT".into()))),
            Ok(None)
        ));
    }
}
