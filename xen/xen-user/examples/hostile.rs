//! A hostile guest's broker: the program of the case `guests-hostile` of tests/xen.
//!
//! It meets the broker of the guest that has [`VICTIM`], by the nodes and over the channel of apps/fordwayd/src/guests, and
//! misbehaves in one way, which its first word names. Its role is its domain id's: below the victim's it is the senior, whose
//! lines are `Down`, above it the junior, whose lines are `Up`. What it sees is told in lines `hostile: ...`; whether the victim is
//! well, others find out.
//!
//! The grants that a line needs are this guest's own, true or false. A connection that is to get rings is one of TCP to the victim's
//! redis, so that the victim's program offers it as it would an honest guest's.

use fordway_abi::shm::{GUEST_HEAD_BYTES, REGION_MAGIC};
use fordway_xen_user::{
    Access, Channel, Domain, Doorbell, EventChannel, Granted, Mapped, OwnRegion, PAGE_SIZE,
    PeerRegion, Reference, Store,
};
use std::error::Error as Fault;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Fault>>;

/// The victim's address, as dom0 tells it.
const VICTIM: &str = "10.0.0.8";
const REDIS: (&str, u16) = (VICTIM, 6379);
/// Nothing that is waited for takes so long, and what does not come has not come after it.
const PATIENCE: Duration = Duration::from_secs(20);
const ARENA_BYTES: usize = 256 << 10;
/// Links that the victim's broker has with one guest at most (apps/fordwayd/src/guests).
const LINKS_MAX: u64 = 11;
/// Of one side of a link.
const LINK_PAGES: usize = GUEST_HEAD_BYTES / PAGE_SIZE + (4 << 20) / PAGE_SIZE;
const GRANTS_LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // More than a link's pages.
    let _ = std::fs::write(GRANTS_LIMIT, "24576");
    match Foe::here().and_then(|mut foe| foe.misbehave(&words)) {
        Ok(said) => println!("hostile: {}: {said}", words.join(" ")),
        Err(error) => {
            println!("hostile: {}: FAILED: {error}", words.join(" "));
            std::process::exit(1);
        }
    }
}

/// This guest.
struct Foe {
    store: Store,
    own: Domain,
    victim: Domain,
    address: String,
    /// What was answered already.
    answered: String,
    seed: u64,
}

/// A conversation.
struct Talk {
    channel: Channel,
    heard: Vec<u8>,
}

/// A line of JSON, which has a name and numbers.
struct Line(String);

impl Line {
    fn is(&self, name: &str) -> bool {
        self.0.starts_with(&format!("{{\"{name}\""))
    }

    /// A number or a text of it.
    fn get(&self, key: &str) -> Outcome<&str> {
        let at = self.0.find(&format!("\"{key}\":"));
        let rest = &self.0[at.ok_or_else(|| format!("no {key}: {}", self.0))? + key.len() + 3..];
        let rest = rest.trim_start_matches(['"', '[']);
        let end = rest.find(['"', '}', ']']).unwrap_or(rest.len());
        let value = &rest[..end];
        Ok(match self.0.contains(&format!("\"{key}\":[")) {
            true => value,
            false => value.split(',').next().unwrap_or(value),
        })
    }

    fn number(&self, key: &str) -> Outcome<u64> {
        Ok(self.get(key)?.parse()?)
    }

    fn numbers(&self, key: &str) -> Outcome<Vec<u32>> {
        let numbers = self.get(key)?.split(',').map(str::parse);
        Ok(numbers.collect::<Result<_, _>>()?)
    }
}

impl Talk {
    /// All of it, as the victim reads; an error once it has ended the conversation.
    fn say(&self, text: &[u8]) -> Outcome {
        let until = Instant::now() + PATIENCE;
        let mut rest = text;
        while !rest.is_empty() {
            let count = self.channel.try_send(rest)?;
            rest = &rest[count..];
            if count == 0 {
                check(Instant::now() < until, "the victim reads")?;
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    fn line(&self, text: &str) -> Outcome {
        self.say(format!("{text}\n").as_bytes())
    }

    /// The next line, if one comes in time.
    fn hear(&mut self, patience: Duration) -> Outcome<Option<Line>> {
        let until = Instant::now() + patience;
        let mut piece = [0; 4096];
        loop {
            if let Some(at) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line = self.heard.drain(..=at);
                let line = String::from_utf8_lossy(&line.collect::<Vec<_>>()).into_owned();
                return Ok(Some(Line(line.trim_end().to_owned())));
            }
            let count = self.channel.try_receive(&mut piece)?;
            self.heard.extend(&piece[..count]);
            if count == 0 {
                if Instant::now() >= until {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    }

    /// The next line of that name.
    fn await_line(&mut self, name: &str) -> Outcome<Line> {
        let until = Instant::now() + PATIENCE;
        loop {
            let line = self.hear(PATIENCE)?;
            match line {
                Some(line) if line.is(name) => return Ok(line),
                Some(_) if Instant::now() < until => {}
                _ => return Err(format!("no {name} comes").into()),
            }
        }
    }

    /// Whether the victim ends the conversation.
    fn is_ended(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.hear(Duration::from_millis(100)) {
                Ok(_) => {}
                Err(_) => return true,
            }
        }
        false
    }
}

/// A connection to the victim's redis, and what there is of it between the two guests.
struct Linked {
    stream: TcpStream,
    /// The process whose it is: ours by a number of ours, or the victim's by its.
    process: u64,
    conn: u64,
    link: u64,
    own: Granted,
    theirs: Vec<u32>,
    /// Ports that the victim was given, or gives.
    bells: Vec<EventChannel>,
}

impl Foe {
    fn here() -> Outcome<Self> {
        let mut store = Store::open()?;
        let own = store.read("domid")?.parse()?;
        let address = store.read("fordway/address")?;
        let mut victim = None;
        for peer in store.directory("fordway/peers")? {
            if store.read(&format!("fordway/peers/{peer}"))? == VICTIM {
                victim = Some(peer.parse()?);
            }
        }
        let mut foe = Self {
            store,
            own,
            victim: victim.ok_or("dom0 does not let us meet the victim")?,
            address,
            answered: String::new(),
            seed: 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()),
        };
        let theirs = foe.theirs();
        foe.store.watch(&theirs, "victim")?;
        Ok(foe)
    }

    fn is_senior(&self) -> bool {
        self.own < self.victim
    }

    fn theirs(&self) -> String {
        format!("/local/domain/{}/data/fordway/{}", self.victim, self.own)
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn tell(&mut self, value: &str) -> Outcome {
        let node = format!("data/fordway/{}", self.victim);
        self.store.write(&node, value)?;
        let entries = [format!("n{}", self.own), format!("r{}", self.victim)];
        Ok(self
            .store
            .set_permissions(&node, &[&entries[0], &entries[1]])?)
    }

    fn meet(&mut self) -> Outcome<Talk> {
        let channel = match self.is_senior() {
            true => self.meet_as_senior()?,
            false => self.meet_as_junior()?,
        };
        Ok(Talk {
            channel,
            heard: Vec::new(),
        })
    }

    fn meet_as_senior(&mut self) -> Outcome<Channel> {
        let nonce = format!("{:016x}", self.random());
        let own = OwnRegion::new(self.victim, ARENA_BYTES)?;
        let events = EventChannel::offer(self.victim)?;
        events.unblock()?;
        self.tell(&format!("{nonce} {} {}", own.reference(), events.port()))?;
        let until = Instant::now() + PATIENCE;
        let theirs = self.theirs();
        while Instant::now() < until {
            let said = self.store.read(&theirs).unwrap_or_default();
            if let Some((answered, grant)) = said.split_once(' ')
                && answered == nonce
            {
                let peer = PeerRegion::map(self.victim, grant.parse()?)?;
                return Ok(Channel::new(own, peer, Doorbell::new(events), None)?);
            }
            self.store.next_event(Duration::from_secs(1))?;
        }
        Err("the victim does not answer".into())
    }

    fn meet_as_junior(&mut self) -> Outcome<Channel> {
        let until = Instant::now() + PATIENCE;
        let theirs = self.theirs();
        while Instant::now() < until {
            let said = self.store.read(&theirs).unwrap_or_default();
            let words: Vec<&str> = said.split(' ').collect();
            if let [nonce, grant, port] = words[..]
                && said != self.answered
                && let Ok(channel) = self.answer(nonce, grant, port)
            {
                self.answered = said;
                return Ok(channel);
            }
            // What stands there may be of a conversation that is over.
            self.store.next_event(Duration::from_millis(200))?;
        }
        Err("the victim lays nothing out".into())
    }

    fn answer(&mut self, nonce: &str, grant: &str, port: &str) -> Outcome<Channel> {
        let peer = PeerRegion::map(self.victim, grant.parse()?)?;
        let events = EventChannel::accept(self.victim, port.parse()?)?;
        events.unblock()?;
        let own = OwnRegion::new(self.victim, ARENA_BYTES)?;
        let reference = own.reference();
        let channel = Channel::new(own, peer, Doorbell::new(events), None)?;
        self.tell(&format!("{nonce} {reference}"))?;
        Ok(channel)
    }

    fn misbehave(&mut self, words: &[&str]) -> Outcome<String> {
        let count = |at: usize, otherwise: u64| match words.get(at) {
            Some(word) => word.parse().unwrap_or(otherwise),
            None => otherwise,
        };
        match words.first().copied().unwrap_or_default() {
            "silence" => self.silence(),
            "meets" => self.meets(count(1, 1000), false),
            "keeps" => self.meets(count(1, 100), true),
            "garbage" => self.garbage(),
            "flood" => self.flood(count(1, 100_000)),
            "offers" => self.offers(count(1, 256), count(2, 1024)),
            "lies" => self.lies(),
            "grants" => self.wrong_grants(),
            "repeats" => self.repeats(count(1, 20_000)),
            "region" => self.garbage_in_region(count(1, 2000)),
            "head" => self.garbage_in_head(),
            "storm" => self.storm(count(1, 100_000)),
            "nodes" => self.nodes(count(1, 3000)),
            "links" => self.links(count(1, 40), false),
            "links-kept" => self.links(count(1, 40), true),
            "taken" => self.taken_back(),
            other => Err(format!("no such trial: {other}").into()),
        }
    }

    /// Meets, says nothing, and ends without a word.
    fn silence(&mut self) -> Outcome<String> {
        let talk = self.meet()?;
        let _linked = TcpStream::connect(REDIS)?;
        std::thread::sleep(Duration::from_secs(3));
        drop(talk);
        Ok("met and was silent".into())
    }

    /// Meets again and again; what it was granted it keeps mapped, or not.
    fn meets(&mut self, times: u64, keeps: bool) -> Outcome<String> {
        let mut kept = Vec::new();
        let began = Instant::now();
        for turn in 0..times {
            let talk = self
                .meet()
                .map_err(|error| format!("meeting {turn}: {error}"))?;
            // A senior that is left alone lays nothing out.
            if keeps || turn % 2 == 0 {
                let _ = talk.line("nonsense");
            }
            if keeps {
                kept.push(talk);
            }
        }
        let paced = began.elapsed() >= Duration::from_secs(times.saturating_sub(2));
        check(paced, "met once a second")?;
        Ok(format!("met {times} times, {} kept", kept.len()))
    }

    fn garbage(&mut self) -> Outcome<String> {
        let mut noise = vec![0; 300 << 10];
        for piece in noise.chunks_mut(8) {
            piece.copy_from_slice(&self.random().to_ne_bytes());
        }
        let without_ends: Vec<u8> = noise.iter().map(|byte| byte | 0x80).collect();
        let deep = [vec![b'['; 60_000], vec![b'\n']].concat();
        let deeper = format!(
            "{{\"Gone\":{}1{}}}\n",
            "[".repeat(20_000),
            "]".repeat(20_000)
        );
        let ignored = format!(
            "{{\"Gone\":{{\"process\":1,\"x\":{}1{}}}}}\n",
            "{\"x\":".repeat(9_000),
            "}".repeat(9_000)
        );
        let numbers = b"{\"Gone\":{\"process\":99999999999999999999999999}}\n".to_vec();
        let negative = b"{\"Gone\":{\"process\":-1}}\n".to_vec();
        let trials: [(&str, Vec<u8>); 9] = [
            ("noise", noise.clone()),
            ("noise without a line's end", without_ends.clone()),
            (
                "a line of 1 MB",
                [without_ends.repeat(4), vec![b'\n']].concat(),
            ),
            ("zeros", vec![0; 100_000]),
            ("empty lines", vec![b'\n'; 1000]),
            ("deep JSON", deep),
            ("deep where a number is due", deeper.into_bytes()),
            ("a number out of range", numbers),
            ("a negative number", negative),
        ];
        for (what, bytes) in trials {
            let mut talk = self.meet().map_err(|error| format!("{what}: {error}"))?;
            // It may be ended before all is said.
            let _ = talk.say(&bytes);
            check(talk.is_ended(), what)?;
        }
        // What a line has beside is not looked at.
        let mut talk = self.meet()?;
        talk.say(ignored.as_bytes())?;
        let _ = talk.hear(Duration::from_millis(100));
        drop(talk);
        // Half a line, and the end.
        for _ in 0..5 {
            let talk = self.meet()?;
            talk.say(b"{\"Gone\":{\"proc")?;
            drop(talk);
        }
        Ok("each ended the conversation".into())
    }

    /// Valid lines, whose answers are not read: some conversations are ended, all of them anew.
    fn flood(&mut self, lines: u64) -> Outcome<String> {
        let shapes: &[&str] = match self.is_senior() {
            true => &[
                "{\"Ask\":{\"process\":1,\"door\":#}}",
                "{\"PeerGone\":{\"process\":#,\"link\":#}}",
                "{\"DoorAck\":{\"process\":#,\"door\":1}}",
                "{\"Downgrade\":{\"process\":#,\"channel\":#,\"reason\":1}}",
                "{\"Reject\":{\"process\":#,\"conn\":#,\"reason\":3,\"pending\":1}}",
                "{\"Link\":{\"process\":#,\"link\":#}}",
                "{\"LetGo\":{\"process\":#,\"link\":#}}",
            ],
            false => &[
                "{\"Door\":{\"process\":#,\"door\":1}}",
                "{\"Gone\":{\"process\":#}}",
                "{\"Join\":{\"process\":#,\"doors\":18446744073709551615}}",
                "{\"Status\":{\"process\":#,\"conn\":#,\"channel\":0,\"status\":1,\"reason\":0,\"tx\":18446744073709551615,\"rx\":1}}",
                "{\"NoRegion\":{\"process\":#,\"link\":#}}",
                "{\"Answer\":{\"process\":#,\"door\":1}}",
                "{\"LetGo\":{\"process\":#,\"link\":#}}",
            ],
        };
        let mut ended = 0;
        for shape in shapes {
            let mut talk = self.meet()?;
            let mut said = 0;
            while said < lines / shapes.len() as u64 {
                let some = (said..said + 500).map(|n| shape.replace('#', &n.to_string()) + "\n");
                if talk.say(some.collect::<String>().as_bytes()).is_err() {
                    ended += 1;
                    break;
                }
                said += 500;
            }
            // It has read all of it once it answers this, or has ended it.
            let _ = talk.line(match self.is_senior() {
                true => "{\"Ask\":{\"process\":4242424242,\"door\":1}}",
                false => "{\"Door\":{\"process\":4242424242,\"door\":1}}",
            });
            let until = Instant::now() + PATIENCE;
            while let Ok(line) = talk.hear(PATIENCE) {
                match line {
                    Some(line) if line.0.contains("4242424242") => break,
                    Some(_) if Instant::now() < until => {}
                    _ => return Err(format!("no answer behind {shape}").into()),
                }
            }
        }
        check(ended == 0, "valid lines end no conversation")?;
        Ok(format!("{lines} lines"))
    }

    /// As many offers as it may have, of connections that are not there; they end with the conversation.
    fn offers(&mut self, processes: u64, connections: u64) -> Outcome<String> {
        check(!self.is_senior(), "offers are a junior's")?;
        let mut talk = self.meet()?;
        let address = self.address.clone();
        let mut refused = 0;
        for process in 0..processes {
            talk.line(&format!(
                "{{\"Join\":{{\"process\":{process},\"doors\":1}}}}"
            ))?;
            for conn in 0..connections {
                let port = 1024 + (process * connections + conn) % 60_000;
                let to = 1 + (process * connections + conn) / 60_000;
                talk.line(&format!(
                    "{{\"Offer\":{{\"process\":{process},\"conn\":{conn},\"cookie\":{},\"local\":\"{address}:{port}\",\"remote\":\"{VICTIM}:{to}\"}}}}",
                    process * connections + conn
                ))?;
            }
            while let Some(line) = talk.hear(Duration::ZERO)? {
                refused += u64::from(line.is("Reject"));
            }
        }
        talk.line("{\"Door\":{\"process\":4242424242,\"door\":1}}")?;
        loop {
            let line = talk.hear(PATIENCE)?.ok_or("no answer behind the offers")?;
            if line.0.contains("4242424242") {
                break;
            }
            refused += u64::from(line.is("Reject"));
        }
        Ok(format!(
            "{} offers, {refused} refused",
            processes * connections
        ))
    }

    /// A connection to redis, up to where both sides' pages are granted. `grants` are told in place of true ones.
    fn link(&mut self, talk: &mut Talk, number: u64) -> Outcome<Linked> {
        self.link_with(talk, number, |granted| granted.references().to_vec())
    }

    fn link_with(
        &mut self,
        talk: &mut Talk,
        number: u64,
        grants: impl Fn(&Granted) -> Vec<u32>,
    ) -> Outcome<Linked> {
        let mut stream = TcpStream::connect(REDIS)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let local = stream.local_addr()?;
        let until = Instant::now() + PATIENCE;
        let own = Granted::new(self.victim, LINK_PAGES as u32, Access::Read)?;
        let listed = |grants: Vec<u32>| {
            let grants: Vec<String> = grants.iter().map(u32::to_string).collect();
            grants.join(",")
        };
        let wait = Duration::from_millis(5);
        if !self.is_senior() {
            ping(&mut stream)?;
            talk.line(&format!(
                "{{\"Join\":{{\"process\":{number},\"doors\":1}}}}"
            ))?;
            talk.line(&format!(
                "{{\"Offer\":{{\"process\":{number},\"conn\":{number},\"cookie\":{number},\"local\":\"{local}\",\"remote\":\"{VICTIM}:6379\"}}}}"
            ))?;
            let link = loop {
                check(Instant::now() < until, "a link comes")?;
                ping(&mut stream)?;
                match talk.hear(wait)? {
                    Some(line) if line.is("Link") => break line.number("link")?,
                    Some(line)
                        if line.is("Reject")
                            && line.number("conn")? == number
                            && line.number("pending")? == 0 =>
                    {
                        return Err(format!("refused: {}", line.0).into());
                    }
                    _ => {}
                }
            };
            let grants = listed(grants(&own));
            talk.line(&format!(
                "{{\"Region\":{{\"process\":{number},\"link\":{link},\"grants\":[{grants}]}}}}"
            ))?;
            let theirs = talk.await_line("Peer")?.numbers("grants")?;
            let mut bells = Vec::new();
            loop {
                let line = talk.hear(PATIENCE)?.ok_or("no pair comes")?;
                if line.is("Bell") {
                    let port = line.number("port")? as u32;
                    // A program that cannot have the link lets go of the port.
                    bells.extend(EventChannel::accept(self.victim, port));
                }
                if line.is("Pair") {
                    break;
                }
            }
            return Ok(Linked {
                stream,
                process: number,
                conn: number,
                link,
                own,
                theirs,
                bells,
            });
        }
        let (process, conn) = self.await_offer(talk, &mut stream)?;
        talk.line(&format!(
            "{{\"Link\":{{\"process\":{process},\"link\":{number}}}}}"
        ))?;
        let line = loop {
            match talk.hear(PATIENCE)?.ok_or("no region comes")? {
                line if line.is("Region") => break line,
                line if line.is("NoRegion") => return Err("the victim has no region for it".into()),
                _ => {}
            }
        };
        let theirs = line.numbers("grants")?;
        let grants = listed(grants(&own));
        talk.line(&format!(
            "{{\"Peer\":{{\"process\":{process},\"link\":{number},\"grants\":[{grants}]}}}}"
        ))?;
        let mut bells = Vec::new();
        for sleeps in [true, false] {
            let bell = EventChannel::offer(self.victim)?;
            let port = bell.port();
            talk.line(&format!(
                "{{\"Bell\":{{\"process\":{process},\"link\":{number},\"door\":0,\"port\":{port},\"sleeps\":{sleeps}}}}}"
            ))?;
            bells.push(bell);
        }
        talk.line(&format!(
            "{{\"Pair\":{{\"process\":{process},\"conn\":{conn},\"channel\":{number},\"link\":{number},\"slot\":0,\"generation\":1}}}}"
        ))?;
        Ok(Linked {
            stream,
            process,
            conn,
            link: number,
            own,
            theirs,
            bells,
        })
    }

    /// Lines about what is not its own, or not there.
    fn lies(&mut self) -> Outcome<String> {
        let mut talk = self.meet()?;
        let address = self.address.clone();
        if !self.is_senior() {
            talk.line("{\"Join\":{\"process\":1,\"doors\":1}}")?;
            talk.line("{\"Join\":{\"process\":1,\"doors\":3}}")?;
            for (local, remote) in [
                ("10.0.0.9:1000".to_owned(), "10.0.0.8:6379".to_owned()),
                ("10.0.0.8:6379".to_owned(), "10.0.0.9:1000".to_owned()),
                ("127.0.0.1:1000".to_owned(), "127.0.0.1:6379".to_owned()),
                ("[::1]:1000".to_owned(), "[::1]:6379".to_owned()),
                (
                    format!("[::ffff:{address}]:1000"),
                    format!("[::ffff:{VICTIM}]:6379"),
                ),
                (format!("{address}:1000"), "127.0.0.1:6379".to_owned()),
                (format!("{address}:0"), format!("{VICTIM}:0")),
                (format!("{address}:1"), format!("{address}:2")),
            ] {
                for conn in [0, 1, u64::MAX] {
                    talk.line(&format!(
                        "{{\"Offer\":{{\"process\":1,\"conn\":{conn},\"cookie\":{conn},\"local\":\"{local}\",\"remote\":\"{remote}\"}}}}"
                    ))?;
                }
            }
        }
        let wide = [0, 1, 2, 63, 64, 65, 1 << 32, u64::MAX];
        let mut said = 0;
        for &process in &wide {
            for &number in &wide {
                let small = number as u32;
                let lines = match self.is_senior() {
                    false => vec![
                        format!(
                            "{{\"Region\":{{\"process\":{process},\"link\":{number},\"grants\":[1,2,3]}}}}"
                        ),
                        format!("{{\"NoRegion\":{{\"process\":{process},\"link\":{number}}}}}"),
                        format!("{{\"Door\":{{\"process\":{process},\"door\":{number}}}}}"),
                        format!("{{\"Answer\":{{\"process\":{process},\"door\":{number}}}}}"),
                        format!(
                            "{{\"Status\":{{\"process\":{process},\"conn\":{number},\"channel\":{number},\"status\":{small},\"reason\":{small},\"tx\":{number},\"rx\":{number}}}}}"
                        ),
                    ],
                    true => vec![
                        format!("{{\"Link\":{{\"process\":{process},\"link\":{number}}}}}"),
                        format!(
                            "{{\"Peer\":{{\"process\":{process},\"link\":{number},\"grants\":[1,2,3]}}}}"
                        ),
                        format!(
                            "{{\"Bell\":{{\"process\":{process},\"link\":{number},\"door\":{number},\"port\":{small},\"sleeps\":true}}}}"
                        ),
                        format!(
                            "{{\"Pair\":{{\"process\":{process},\"conn\":{number},\"channel\":{number},\"link\":{number},\"slot\":{small},\"generation\":{small}}}}}"
                        ),
                        format!("{{\"DoorAck\":{{\"process\":{process},\"door\":{number}}}}}"),
                        format!(
                            "{{\"Downgrade\":{{\"process\":{process},\"channel\":{number},\"reason\":{small}}}}}"
                        ),
                        format!("{{\"PeerGone\":{{\"process\":{process},\"link\":{number}}}}}"),
                        format!(
                            "{{\"Reject\":{{\"process\":{process},\"conn\":{number},\"reason\":{small},\"pending\":0}}}}"
                        ),
                    ],
                };
                said += lines.len();
                lines.iter().try_for_each(|line| talk.line(line))?;
            }
        }
        // About a link that is there.
        let mut linked = self.link(&mut talk, 77)?;
        let (process, conn, link) = (linked.process, linked.conn, linked.link);
        let lines = match self.is_senior() {
            true => vec![
                // The same slot for another connection, places that are none, again and again.
                format!(
                    "{{\"Pair\":{{\"process\":{process},\"conn\":{conn},\"channel\":78,\"link\":{link},\"slot\":0,\"generation\":1}}}}"
                ),
                format!(
                    "{{\"Pair\":{{\"process\":{process},\"conn\":{conn},\"channel\":78,\"link\":{link},\"slot\":64,\"generation\":0}}}}"
                ),
                format!("{{\"Peer\":{{\"process\":{process},\"link\":{link},\"grants\":[]}}}}"),
                format!(
                    "{{\"Bell\":{{\"process\":{process},\"link\":{link},\"door\":63,\"port\":4000000000,\"sleeps\":false}}}}"
                ),
                format!(
                    "{{\"Bell\":{{\"process\":{process},\"link\":{link},\"door\":64,\"port\":1,\"sleeps\":false}}}}"
                ),
                format!("{{\"Link\":{{\"process\":{process},\"link\":{link}}}}}"),
            ],
            false => vec![
                format!("{{\"Region\":{{\"process\":{process},\"link\":{link},\"grants\":[]}}}}"),
                format!("{{\"NoRegion\":{{\"process\":{process},\"link\":{link}}}}}"),
                format!("{{\"Door\":{{\"process\":{process},\"door\":64}}}}"),
                format!(
                    "{{\"Status\":{{\"process\":{process},\"conn\":{conn},\"channel\":1,\"status\":9,\"reason\":9,\"tx\":0,\"rx\":0}}}}"
                ),
            ],
        };
        lines.iter().try_for_each(|line| talk.line(line))?;
        drop(talk);
        // What was sent by TCP behind the rings' beginning is not read by anybody; the connection ends somehow.
        let _ = linked.stream.write_all(b"PING\r\n");
        Ok(format!("{said} lines"))
    }

    /// Links whose grants are none: each connection goes on by TCP.
    fn wrong_grants(&mut self) -> Outcome<String> {
        let mut talk = self.meet()?;
        let revoked = {
            let granted = Granted::new(self.victim, 1, Access::Read)?;
            granted.references()[0]
        };
        let foreign = Granted::new(self.own + 100, 1, Access::Read)?;
        let foreign = foreign.references()[0];
        type Wrong = Box<dyn Fn(&Granted) -> Vec<u32>>;
        let with = |at: usize, number: u32| -> Wrong {
            Box::new(move |granted| {
                let mut grants = granted.references().to_vec();
                grants[at] = number;
                grants
            })
        };
        let trials: [(&str, Wrong); 8] = [
            ("none", Box::new(|_| Vec::new())),
            (
                "too few",
                Box::new(|granted| granted.references()[1..].to_vec()),
            ),
            (
                "too many",
                Box::new(|granted| [granted.references(), &[8]].concat()),
            ),
            ("one that is revoked", with(500, revoked)),
            ("one for another domain", with(500, foreign)),
            ("one that is none", with(0, u32::MAX)),
            ("one that is XenStore's", with(1, 1)),
            (
                "the same page everywhere",
                Box::new(|granted| vec![granted.references()[0]; LINK_PAGES]),
            ),
        ];
        let mut told = Vec::new();
        for (number, (what, grants)) in trials.into_iter().enumerate() {
            let made = self.link_with(&mut talk, 100 + number as u64, grants);
            let mut linked = made.map_err(|error| format!("{what}: {error}"))?;
            let answered = (0..20).all(|_| ping(&mut linked.stream).is_ok());
            if what != "the same page everywhere" {
                check(answered, &format!("{what}: the connection goes on by TCP"))?;
            }
            told.push(answered);
        }
        Ok(format!("{told:?}"))
    }

    /// What may be said once, said again and again about a live link and connection.
    fn repeats(&mut self, times: u64) -> Outcome<String> {
        let mut talk = self.meet()?;
        let linked = self.link(&mut talk, 200)?;
        let (process, conn, link) = (linked.process, linked.conn, linked.link);
        let mut lines = match self.is_senior() {
            true => vec![
                format!("{{\"Downgrade\":{{\"process\":{process},\"channel\":200,\"reason\":#}}}}"),
                format!(
                    "{{\"PeerGone\":{{\"process\":{process},\"link\":{link}}}}}\n{{\"Link\":{{\"process\":{process},\"link\":{link}}}}}"
                ),
            ],
            false => vec![
                format!("{{\"Region\":{{\"process\":{process},\"link\":{link},\"grants\":[]}}}}"),
                format!(
                    "{{\"Status\":{{\"process\":{process},\"conn\":{conn},\"channel\":#,\"status\":1,\"reason\":#,\"tx\":1,\"rx\":1}}}}"
                ),
                format!("{{\"Door\":{{\"process\":{process},\"door\":1}}}}"),
            ],
        };
        // An offer that waits.
        let mut waits = TcpStream::connect(REDIS)?;
        if self.is_senior() {
            let (process, conn) = self.await_offer(&mut talk, &mut waits)?;
            lines.push(format!("{{\"Reject\":{{\"process\":{process},\"conn\":{conn},\"reason\":2,\"pending\":1}}}}"));
        }
        // Meanwhile the victim's program takes no mail.
        let mut busy = TcpStream::connect(REDIS)?;
        busy.set_read_timeout(Some(PATIENCE))?;
        for line in &lines {
            busy.write_all(b"eval \"for i=1,60000000 do end return 7\" 0\r\n")?;
            // Links cost the victim more than lines.
            let times = if line.contains("Link") {
                times / 100
            } else {
                times
            };
            for turn in 0..times {
                talk.line(&line.replace('#', &(turn % 70).to_string()))
                    .map_err(|error| format!("ended by the victim at {turn} of {line}: {error}"))?;
                while let Some(_line) = talk.hear(Duration::ZERO)? {}
            }
            let mut answer = [0; 4];
            busy.read_exact(&mut answer)?;
        }
        Ok(format!("{times} times {}", lines.len()))
    }

    /// The victim's offer of a connection.
    fn await_offer(&mut self, talk: &mut Talk, stream: &mut TcpStream) -> Outcome<(u64, u64)> {
        let local = format!("\"remote\":\"{}\"", stream.local_addr()?);
        let until = Instant::now() + PATIENCE;
        loop {
            check(Instant::now() < until, "the victim's program offers")?;
            ping(stream)?;
            if let Some(line) = talk.hear(Duration::from_millis(5))?
                && line.is("Offer")
                && line.0.contains(&local)
            {
                return Ok((line.number("process")?, line.number("conn")?));
            }
        }
    }

    /// Noise in its side of a link, while the victim's program has a connection there.
    fn garbage_in_region(&mut self, times: u64) -> Outcome<String> {
        let mut talk = self.meet()?;
        let (mut reset, mut made) = (0, 0);
        let rounds = 8;
        for round in 0..rounds {
            let linked = match self.link(&mut talk, 300 + round) {
                Ok(linked) => linked,
                Err(error) => return Err(format!("link {round}: {error}").into()),
            };
            // As the victim's program has it once it has laid both sides.
            let domain = self.victim;
            let number = linked.theirs[0];
            let head = Mapped::new([Reference { domain, number }].into_iter())?;
            std::thread::sleep(Duration::from_millis(50));
            // SAFETY: the first word of a page that is mapped.
            let magic = unsafe { &*head.start().cast::<AtomicU32>() };
            made += u64::from(magic.load(Ordering::Relaxed) == REGION_MAGIC);
            drop(head);
            let bytes = match round % 4 {
                // All of it, the header and the marks, endpoints alone, slot 0 alone.
                0 => (0, GUEST_HEAD_BYTES + (64 << 10)),
                1 => (0, 3 * PAGE_SIZE),
                2 => (3 * PAGE_SIZE, GUEST_HEAD_BYTES),
                _ => (3 * PAGE_SIZE, 3 * PAGE_SIZE + 1024),
            };
            for turn in 0..times {
                let noise = self.random();
                let at = bytes.0 + (self.random() as usize % (bytes.1 - bytes.0)) / 8 * 8;
                let value = match turn % 4 {
                    0 => noise,
                    1 => noise & 0xffff,
                    2 => u64::MAX,
                    _ => 0,
                };
                // SAFETY: within our own pages, aligned.
                let word = unsafe { &*linked.own.start().add(at).cast::<AtomicU64>() };
                word.store(value, Ordering::SeqCst);
                if turn % 50 == 0 {
                    linked.bells.iter().try_for_each(EventChannel::ring)?;
                    std::thread::yield_now();
                }
            }
            linked.bells.iter().try_for_each(EventChannel::ring)?;
            let mut stream = linked.stream.try_clone()?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            let _ = stream.write_all(b"PING\r\n");
            let mut buffer = [0; 64];
            reset += u64::from(!matches!(stream.read(&mut buffer), Ok(count) if count > 0));
        }
        Ok(format!(
            "{rounds} links, {made} of them laid by the victim's program, {reset} connections that do not answer by TCP"
        ))
    }

    /// Noise where its broker's channel lies.
    fn garbage_in_head(&mut self) -> Outcome<String> {
        for turn in 0..12 {
            let talk = self.meet()?;
            let granted = talk.channel.own().granted();
            // The directory was read; header, marks, endpoints and wait page follow.
            let words = 6 * PAGE_SIZE / 8;
            for _ in 0..2000 {
                let at = PAGE_SIZE / 8 + self.random() as usize % (words - PAGE_SIZE / 8);
                let value = match turn % 3 {
                    0 => self.random(),
                    1 => u64::MAX,
                    _ => self.random() & 0xfffff,
                };
                // SAFETY: within our own pages, aligned.
                let word = unsafe { &*granted.start().cast::<AtomicU64>().add(at) };
                word.store(value, Ordering::SeqCst);
            }
            // Our own end reads the same pages, and is of no use any more.
            let port = port_of(&talk.channel)?;
            ring(&talk.channel, port);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok("12 channels".into())
    }

    /// Rings without an end, at the broker and at a program.
    fn storm(&mut self, times: u64) -> Outcome<String> {
        let mut talk = self.meet()?;
        let linked = self.link(&mut talk, 400)?;
        let port = port_of(&talk.channel)?;
        for _ in 0..times {
            ring(&talk.channel, port);
            linked.bells.iter().try_for_each(EventChannel::ring)?;
        }
        Ok(format!(
            "{times} rings at each of {} ports",
            1 + linked.bells.len()
        ))
    }

    /// Its own node, again and again, and away, and back.
    fn nodes(&mut self, times: u64) -> Outcome<String> {
        let node = format!("data/fordway/{}", self.victim);
        let long = "9".repeat(2000);
        for turn in 0..times {
            let number = self.random();
            match turn % 8 {
                0 => self.tell("")?,
                1 => self.tell(&format!(
                    "{number:016x} {} {}",
                    number % 4000,
                    number % 2000
                ))?,
                2 => self.tell(&format!("{number:016x} {}", number % 4000))?,
                3 => self.tell(&long)?,
                4 => self.tell("a b c d e f")?,
                5 => self.tell(&format!("{number:016x} -1 99999999999"))?,
                6 => self.store.remove(&node)?,
                _ => {
                    self.store.write(&format!("{node}/below"), "x")?;
                    let _ = self.store.set_permissions(&node, &["n0"]);
                    self.store.remove(&node)?;
                }
            }
        }
        let _talk = self.meet()?;
        Ok(format!("{times} times, and met again"))
    }

    /// Many links, one for each process, each connection kept or let go of, what was granted mapped for ever or not.
    fn links(&mut self, count: u64, keeps: bool) -> Outcome<String> {
        let mut talk = self.meet()?;
        let mut kept = Vec::new();
        let mut mapped = Vec::new();
        for number in 0..count {
            let linked = match self.link(&mut talk, 500 + number) {
                Ok(linked) => linked,
                Err(error) if number == LINKS_MAX && !keeps => {
                    return Ok(format!("{number} links, then: {error}"));
                }
                Err(error) => return Err(format!("{number} links, then: {error}").into()),
            };
            if !keeps {
                kept.push(linked);
                continue;
            }
            let domain = self.victim;
            let references = linked.theirs.iter();
            let references: Vec<Reference> = references
                .map(|&number| Reference { domain, number })
                .collect();
            mapped.push(Mapped::new(references.into_iter())?);
            let process = linked.process;
            let link = linked.link;
            drop(linked);
            talk.line(&match self.is_senior() {
                true => format!("{{\"PeerGone\":{{\"process\":{process},\"link\":{link}}}}}"),
                false => format!("{{\"Gone\":{{\"process\":{process}}}}}"),
            })?;
        }
        // For as long as others look.
        std::thread::sleep(Duration::from_secs(2));
        Ok(format!("{count} links, {} kept mapped", mapped.len()))
    }

    /// Its pages taken back, and its ports, while the victim has a connection there.
    fn taken_back(&mut self) -> Outcome<String> {
        let mut talk = self.meet()?;
        for number in 0..5 {
            let Linked {
                stream, own, bells, ..
            } = self.link(&mut talk, 600 + number)?;
            drop(own);
            drop(bells);
            let mut stream = stream;
            let _ = stream.write_all(b"PING\r\n");
        }
        Ok("5 links".into())
    }
}

/// Rings by a channel's port, whatever its rings say.
fn ring(channel: &Channel, port: u32) -> bool {
    // struct ioctl_evtchn_notify.
    let notify = 4 << 16 | u64::from(b'E') << 8 | 4;
    // SAFETY: the request reads four bytes.
    unsafe { libc::ioctl(channel.descriptor().as_raw_fd(), notify, &raw const port) == 0 }
}

/// The descriptor can be used for this port alone.
fn port_of(channel: &Channel) -> Outcome<u32> {
    let found = (1..4096).find(|&port| ring(channel, port));
    Ok(found.ok_or("the channel has no port")?)
}

/// By TCP, in a connection that has no rings yet.
fn ping(stream: &mut TcpStream) -> Outcome {
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    check(&answer == b"+PONG\r\n", "redis answers")
}

fn check(holds: bool, what: &str) -> Outcome {
    match holds {
        true => Ok(()),
        false => Err(format!("not so: {what}").into()),
    }
}
