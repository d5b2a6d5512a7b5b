//! How the brokers of two guests find each other, and the channel between them.
//!
//! What the nodes of XenStore are, and who writes them, stands in [`fordway_guests::meet`]. Xen proves that grants and port are
//! the other guest's.
//!
//! A guest that begins anew without an end is met once a second. Each conversation with it has the same region of ours: what it
//! still has mapped would stay allocated if we gave it back, and be counted by nobody.

use fordway_guests::GuestAddresses;
use fordway_guests::meet::{self as nodes, Word, node_for, node_of};
use fordway_guests::talk::{self, Lines};
use fordway_platform::process;
use fordway_xen_user::{
    Channel, Domain, Doorbell, Error, EventChannel, OwnRegion, PeerRegion, Store,
};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Ring memory to the other broker.
const ARENA_BYTES: usize = 256 << 10;
/// What may wait to be sent: more is a broker that does not read.
const OUTGOING_BYTES_MAX: usize = 4 << 20;
/// Before what has failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Lines of one broker, and watches, that are acted on before others get their turn.
const LINES_PER_TURN: usize = 64;
const WATCHES_PER_TURN: usize = 16;

/// Where a conversation stands.
#[derive(Debug)]
enum Meeting {
    /// The other one has something to lay out, or has not answered.
    Waits,
    /// The senior's: laid out.
    Offers {
        nonce: String,
        own: OwnRegion,
        events: EventChannel,
    },
    /// They talk.
    Talks(Channel),
}

/// Another guest.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) addresses: GuestAddresses,
    meeting: Meeting,
    /// Our region, between two meetings.
    region: Option<OwnRegion>,
    /// When it was met last.
    met_at: Option<Instant>,
    /// Whether its guest was there when its node was looked at last. Its broker leaves that there, and it goes with the guest.
    is_there: bool,
    /// What its node said when it was acted on.
    heard: String,
    incoming: Lines,
    outgoing: Vec<u8>,
}

/// Why two brokers talk no more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Parted {
    #[error("{0}")]
    Xen(#[from] Error),
    #[error("the guest is gone")]
    Destroyed,
    #[error("its node is gone")]
    Withdrawn,
    #[error("it does not read what it is told")]
    Behind,
    #[error("what it says cannot be read")]
    Nonsense,
    #[error("dom0 does not let us meet it any more")]
    Forbidden,
}

/// Of this guest: its place in XenStore, and the others.
pub(super) struct Meetings {
    store: Store,
    pub(super) own: Domain,
    pub(super) addresses: Option<GuestAddresses>,
    /// When something that has failed is tried again.
    again_at: Option<Instant>,
    /// XenStore did not say all that dom0 has said.
    is_unread: bool,
    pub(super) others: BTreeMap<Domain, Other>,
}

/// What a look at XenStore has brought.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Addresses have changed.
    pub(super) is_told_otherwise: bool,
    /// These talk from now on.
    pub(super) met: Vec<Domain>,
    /// These talk no more, and why.
    pub(super) parted: Vec<(Domain, Parted)>,
}

/// Nothing, where there is no such node, or it is not for us to read. Anything else says nothing of nodes.
fn found<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Error::Refused(name)) if ["ENOENT", "EACCES"].contains(&name.as_str()) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Meetings {
    /// `None`: this is no guest of Xen's.
    pub(super) fn open() -> Option<Self> {
        let mut store = Store::open().ok()?;
        let own = store.read("domid").ok()?.parse().ok()?;
        // dom0 is no guest: it says who may meet.
        if own == 0 || store.watch(nodes::SAID, "said").is_err() {
            return None;
        }
        Some(Self {
            store,
            own,
            addresses: None,
            again_at: None,
            is_unread: false,
            others: BTreeMap::new(),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.store.descriptor()
    }

    /// Whether watches have fired that no descriptor shows.
    pub(super) fn has_fired(&self) -> bool {
        self.store.has_fired()
    }

    pub(super) fn is_senior_to(&self, other: Domain) -> bool {
        self.own < other
    }

    /// Watches that have fired, or some of them.
    pub(super) fn hear(&mut self) -> News {
        let mut news = News::default();
        for _ in 0..WATCHES_PER_TURN {
            match self.store.next_event(Duration::ZERO) {
                Ok(Some(fired)) if fired.token == "said" => self.read_what_is_said(&mut news),
                Ok(Some(fired)) => {
                    if let Ok(other) = fired.token.parse() {
                        self.look_at(other, &mut news);
                    }
                }
                Ok(None) => return news,
                Err(error) => {
                    tracing::warn!("XenStore: {error}");
                    return news;
                }
            }
        }
        news
    }

    fn read_what_is_said(&mut self, news: &mut News) {
        let addresses = found(self.store.read(nodes::ADDRESS));
        let names = found(self.store.directory(nodes::PEERS));
        let (Ok(addresses), Ok(names)) = (addresses, names) else {
            return self.read_later();
        };
        let addresses = addresses.and_then(|addresses| addresses.parse().ok());
        let names = names.unwrap_or_default();
        let mut said: BTreeMap<Domain, GuestAddresses> = BTreeMap::new();
        for other in names.iter().filter_map(|name| name.parse().ok()) {
            let Ok(theirs) = found(self.store.read(&nodes::peer(other))) else {
                return self.read_later();
            };
            if let Some(theirs) = theirs.and_then(|theirs| theirs.parse().ok()) {
                said.insert(other, theirs);
            }
        }
        if addresses.is_none() {
            said.clear();
        }
        said.remove(&self.own);
        let known = |other: &Domain| said.contains_key(other);
        let gone: Vec<Domain> = self.others.keys().copied().filter(|o| !known(o)).collect();
        for other in gone {
            news.is_told_otherwise = true;
            let _ = self
                .store
                .unwatch(&node_of(other, self.own), &other.to_string());
            let _ = self.store.remove(&node_for(other));
            if let Some(Other {
                meeting: Meeting::Talks(_),
                ..
            }) = self.others.remove(&other)
            {
                news.parted.push((other, Parted::Forbidden));
            }
        }
        news.is_told_otherwise |= addresses != self.addresses;
        self.addresses = addresses;
        for (other, addresses) in said {
            match self.others.get_mut(&other) {
                Some(known) => {
                    news.is_told_otherwise |= known.addresses != addresses;
                    known.addresses = addresses;
                }
                None => {
                    news.is_told_otherwise = true;
                    let known = Other {
                        addresses,
                        meeting: Meeting::Waits,
                        region: None,
                        met_at: None,
                        is_there: false,
                        heard: String::new(),
                        incoming: Lines::default(),
                        outgoing: Vec::new(),
                    };
                    self.others.insert(other, known);
                    self.lay_out(other);
                    let watched = self
                        .store
                        .watch(&node_of(other, self.own), &other.to_string());
                    if let Err(error) = watched {
                        tracing::warn!("guest {other} is not met: {error}");
                        // As if it had not been named yet.
                        self.others.remove(&other);
                        self.read_later();
                    }
                }
            }
        }
    }

    /// XenStore does not answer: what was said before holds, and is read again.
    fn read_later(&mut self) {
        self.is_unread = true;
        self.again();
    }

    /// Something is to be tried again. Not later than what waits for that already.
    fn again(&mut self) {
        let at = Instant::now() + AGAIN;
        self.again_at = Some(self.again_at.map_or(at, |sooner| sooner.min(at)));
    }

    /// As the senior: anew.
    fn lay_out(&mut self, other: Domain) {
        if !self.is_senior_to(other) || self.is_too_early(other) {
            return;
        }
        let made = (|| {
            let nonce = process::random::<8>().map_err(|e| Error::Device("getrandom", e))?;
            let nonce = format!("{:016x}", u64::from_ne_bytes(nonce));
            let events = EventChannel::offer(other)?;
            events.unblock()?;
            let own = self.region_for(other)?;
            let (reference, port) = (own.reference(), events.port());
            let meeting = Meeting::Offers {
                nonce: nonce.clone(),
                own,
                events,
            };
            let said = Word::Offer {
                nonce: &nonce,
                grant: reference,
                port,
            };
            Ok::<_, Error>((meeting, said.to_string()))
        })();
        let said = made.and_then(|(meeting, said)| {
            if let Some(known) = self.others.get_mut(&other) {
                known.meeting = meeting;
            }
            self.say(other, &said)
        });
        if let Err(error) = said {
            tracing::warn!("guest {other} is not met: {error}");
            if let Some(known) = self.others.get_mut(&other) {
                known.met_at = Some(Instant::now());
            }
            self.again();
            self.end(other);
        }
    }

    /// The region of the last meeting, or a new one.
    fn region_for(&mut self, other: Domain) -> Result<OwnRegion, Error> {
        self.end(other);
        let known = self.others.get_mut(&other).ok_or(Error::PeerGone)?;
        match known.region.take() {
            Some(mut own) => {
                own.clear();
                Ok(own)
            }
            None => OwnRegion::new(other, ARENA_BYTES),
        }
    }

    /// Nothing is laid out for it any more, and nothing is said.
    fn end(&mut self, other: Domain) {
        if let Some(known) = self.others.get_mut(&other) {
            known.region = match std::mem::replace(&mut known.meeting, Meeting::Waits) {
                Meeting::Offers { own, .. } => Some(own),
                Meeting::Talks(channel) => Some(channel.into_own()),
                Meeting::Waits => known.region.take(),
            };
        }
    }

    /// Whether it was met a moment ago; then it is tried again.
    fn is_too_early(&mut self, other: Domain) -> bool {
        let met_at = self.others.get(&other).and_then(|known| known.met_at);
        let Some(again_at) = met_at.map(|at| at + AGAIN) else {
            return false;
        };
        let is_too_early = Instant::now() < again_at;
        if is_too_early {
            let again_at = self.again_at.map_or(again_at, |at| at.min(again_at));
            self.again_at = Some(again_at);
        }
        is_too_early
    }

    /// What has failed is tried again, once it is time.
    pub(super) fn try_again(&mut self, news: &mut News) {
        if self.again_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.again_at = None;
        if std::mem::take(&mut self.is_unread) {
            self.read_what_is_said(news);
        }
        let waits = |(other, known): (&Domain, &mut Other)| {
            let waits = matches!(known.meeting, Meeting::Waits);
            // What it said is looked at anew. Of others it stays heard, or the next watch would end their talk.
            waits.then(|| known.heard.clear());
            (!known.talks()).then_some((*other, waits))
        };
        let others: Vec<_> = self.others.iter_mut().filter_map(waits).collect();
        for (other, waits) in others {
            match waits && self.is_senior_to(other) {
                true => self.lay_out(other),
                false => self.look_at(other, news),
            }
        }
    }

    /// How long that is from now.
    pub(super) fn patience_ns(&self) -> Option<u64> {
        let left = self.again_at?.saturating_duration_since(Instant::now());
        Some(left.as_nanos() as u64)
    }

    fn say(&mut self, other: Domain, value: &str) -> Result<(), Error> {
        let node = node_for(other);
        self.store.write(&node, value)?;
        let entries = nodes::permissions(other, self.own);
        self.store
            .set_permissions(&node, &[&entries[0], &entries[1]])
    }

    /// The other one's node may say something new.
    fn look_at(&mut self, other: Domain, news: &mut News) {
        let is_senior = self.is_senior_to(other);
        let Ok(said) = found(self.store.read(&node_of(other, self.own))) else {
            return self.again();
        };
        let mut is_destroyed = false;
        if said.is_none() {
            // A broker removes it when dom0 has said no, of which we may hear later.
            match self.is_destroyed(other) {
                Ok(found) => is_destroyed = found,
                Err(_) => return self.again(),
            }
            self.read_what_is_said(news);
        }
        let Some(known) = self.others.get_mut(&other) else {
            return;
        };
        let was_there = known.is_there;
        known.is_there = said.is_some() || was_there && !is_destroyed;
        let Some(said) = said else {
            let talked = known.talks();
            if talked {
                self.end(other);
            }
            // Its broker may have ended before, and what it had made is left.
            if was_there && is_destroyed {
                news.parted.push((other, Parted::Destroyed));
            } else if talked {
                news.parted.push((other, Parted::Withdrawn));
            }
            return;
        };
        if said == known.heard {
            return;
        }
        known.heard.clone_from(&said);
        let met = match (&known.meeting, Word::read(&said)) {
            (Meeting::Offers { nonce, .. }, Some(Word::Answer { nonce: n, grant }))
                if n == nonce =>
            {
                self.finish(other, grant)
            }
            // It has been here, and nothing is laid out for it.
            (Meeting::Waits, Some(Word::Answer { .. })) if is_senior => return self.lay_out(other),
            // Its last word to somebody before us, or from before we have laid out anew.
            (_, Some(Word::Answer { .. })) => return,
            (_, Some(Word::Offer { nonce, grant, port })) if !is_senior => {
                if let Meeting::Talks(_) = known.meeting {
                    self.end(other);
                    news.parted.push((other, Error::PeerGone.into()));
                }
                if self.is_too_early(other) {
                    return;
                }
                self.answer(other, nonce, grant, port)
            }
            _ => Err(Error::Malformed),
        };
        match met {
            Ok(()) => news.met.push(other),
            // It was laid out for a broker before us, and another one follows; or it can be met later.
            Err(error) => {
                tracing::debug!("guest {other} is not met: {error}");
                self.again();
            }
        }
    }

    /// Whether there is no such domain any more. XenStore says that of one whose nodes are not for us as well (EACCES).
    fn is_destroyed(&mut self, other: Domain) -> Result<bool, Error> {
        match self.store.read(&format!("/local/domain/{other}")) {
            Err(Error::Refused(name)) => Ok(name == "ENOENT"),
            read => read.map(|_| false),
        }
    }

    fn finish(&mut self, other: Domain, grant: u32) -> Result<(), Error> {
        let known = self.others.get_mut(&other).ok_or(Error::PeerGone)?;
        match PeerRegion::map(other, grant) {
            Ok(peer) => match std::mem::replace(&mut known.meeting, Meeting::Waits) {
                Meeting::Offers { own, events, .. } => known.begin(own, peer, events),
                _ => Err(Error::Malformed),
            },
            Err(error) => {
                // Not at once: it might answer wrongly without an end.
                known.met_at = Some(Instant::now());
                self.end(other);
                self.lay_out(other);
                Err(error)
            }
        }
    }

    fn answer(&mut self, other: Domain, nonce: &str, grant: u32, port: u32) -> Result<(), Error> {
        if let Some(known) = self.others.get_mut(&other) {
            // However it ends.
            known.met_at = Some(Instant::now());
        }
        let peer = PeerRegion::map(other, grant)?;
        let events = EventChannel::accept(other, port)?;
        events.unblock()?;
        let own = self.region_for(other)?;
        let reference = own.reference();
        let known = self.others.get_mut(&other).ok_or(Error::PeerGone)?;
        known.begin(own, peer, events)?;
        let grant = reference;
        let said = self.say(other, &Word::Answer { nonce, grant }.to_string());
        said.inspect_err(|_| {
            self.end(other);
            // It holds the port, which is to be asked for again.
            if let Some(known) = self.others.get_mut(&other) {
                known.region = None;
            }
        })
    }

    /// The conversation is over; another one may come.
    pub(super) fn part(&mut self, other: Domain) {
        self.end(other);
        self.lay_out(other);
    }
}

impl Other {
    fn begin(
        &mut self,
        own: OwnRegion,
        peer: PeerRegion,
        events: EventChannel,
    ) -> Result<(), Error> {
        self.incoming = Lines::default();
        self.outgoing.clear();
        self.met_at = Some(Instant::now());
        let channel = Channel::new(own, peer, Doorbell::new(events), None)?;
        channel.stand_by()?;
        self.meeting = Meeting::Talks(channel);
        Ok(())
    }

    pub(super) fn talks(&self) -> bool {
        matches!(self.meeting, Meeting::Talks(_))
    }

    /// Readable once the other one has rung.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.meeting {
            Meeting::Talks(channel) => Some(channel.descriptor()),
            _ => None,
        }
    }

    /// To be sent with [`Other::flush`]; nobody hears it if they do not talk.
    pub(super) fn tell(&mut self, message: &impl serde::Serialize) {
        if self.talks()
            && let Some(line) = talk::line(message)
        {
            self.outgoing.extend(line);
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Parted> {
        let Meeting::Talks(channel) = &self.meeting else {
            return Ok(());
        };
        if !self.outgoing.is_empty() {
            let sent = channel.try_send(&self.outgoing)?;
            self.outgoing.drain(..sent);
        }
        match self.outgoing.len() > OUTGOING_BYTES_MAX {
            true => Err(Parted::Behind),
            false => Ok(()),
        }
    }

    /// Lines that have come, and whether there may be more at once.
    pub(super) fn listen(&mut self) -> Result<(Vec<Vec<u8>>, bool), Parted> {
        let Meeting::Talks(channel) = &self.meeting else {
            return Ok((Vec::new(), false));
        };
        let mut piece = [0; 4096];
        let mut more = true;
        let mut end = channel.stand_by().err();
        while more && end.is_none() && !self.incoming.is_full() {
            match channel.try_receive(&mut piece) {
                Ok(count) => {
                    self.incoming.push(&piece[..count]);
                    more = count != 0;
                }
                Err(error) => end = Some(error),
            }
        }
        if let Some(error) = end {
            // Its last words come first.
            if !self.incoming.has_line() {
                return Err(error.into());
            }
            more = true;
        }
        if self.incoming.is_nonsense() {
            return Err(Parted::Nonsense);
        }
        let lines = self.incoming.take(LINES_PER_TURN);
        Ok((lines, more || self.incoming.has_line()))
    }
}
