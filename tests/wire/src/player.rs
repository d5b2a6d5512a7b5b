//! Plays one script against one side.

use std::collections::HashMap;

use crate::Side;
use crate::call::Answer;
use crate::packet::{Frame, Known, Packet, Seen, read};
use crate::script::{Act, Line, Script};

/// How long a call may be repeated that is not ready yet.
const READY_US: u64 = 2_000_000;
const AGAIN_US: u64 = 5_000;
const AGAIN: Answer = Answer::Word("EAGAIN");

struct Player<'a> {
    side: &'a mut dyn Side,
    is_ipv6: bool,
    known: HashMap<u16, Known>,
    peer_port: u16,
    last_out: Vec<u8>,
    /// When the line before was done.
    base: u64,
    /// What came out where something else might have.
    put_back: Option<(u64, Seen)>,
}

/// `Err` says where the side differs from the script.
pub fn play(script: &Script, side: &mut dyn Side) -> Result<(), String> {
    let base = side.now();
    let mut player = Player {
        side,
        is_ipv6: script.is_ipv6,
        known: HashMap::new(),
        peer_port: 40_000,
        last_out: Vec::new(),
        base,
        put_back: None,
    };
    for line in &script.lines {
        player.line(line).map_err(|what| {
            let side = player.side.name();
            format!(
                "{}:{}: {}\n    {side}: {what}",
                script.name, line.number, line.text
            )
        })?;
    }
    let now = player.side.now();
    match player.next_packet(now)? {
        Some((_, seen)) => Err(format!(
            "{}: at the end\n    {}: {seen} came out",
            script.name,
            player.side.name()
        )),
        None => Ok(()),
    }
}

impl Player<'_> {
    fn line(&mut self, line: &Line) -> Result<(), String> {
        let (least, most) = line.time;
        match &line.act {
            Act::Arrives(packet) => {
                self.pause(least);
                let frame = self.frame(packet)?;
                self.side.arrives(&frame);
                self.base = self.side.now();
                Ok(())
            }
            Act::Call(call, wanted) => {
                self.pause(least);
                let give_up = self.side.now() + READY_US;
                let mut answer = self.side.call(call);
                while answer == AGAIN && wanted != "EAGAIN" && self.side.now() < give_up {
                    let then = self.side.now() + AGAIN_US;
                    self.side.wait(then);
                    answer = self.side.call(call);
                }
                if let crate::call::Call::Connect(_, port) = call {
                    self.peer_port = *port;
                }
                self.base = self.side.now();
                if answer.is(wanted) {
                    return Ok(());
                }
                Err(format!("{answer:?}"))
            }
            Act::Nothing => {
                let until = self.base + most;
                match self.next_packet(until)? {
                    Some((_, seen)) => Err(format!("{seen} came out")),
                    None => {
                        self.base = until;
                        Ok(())
                    }
                }
            }
            Act::Leaves(packet) => self.leaves(packet, least, most),
            Act::MayLeave(packet) => {
                let Some((at, seen)) = self.next_packet(self.base + most)? else {
                    return Ok(());
                };
                self.peer_port = packet.peer_port.unwrap_or(self.peer_port);
                let known = self.known.entry(self.peer_port).or_default();
                if seen.differs(packet, known).is_empty() {
                    self.base = at;
                } else {
                    self.put_back = Some((at, seen));
                }
                Ok(())
            }
        }
    }

    fn pause(&mut self, us: u64) {
        if us > 0 {
            let until = self.base + us;
            self.side.wait(until);
        }
    }

    fn frame(&mut self, packet: &Packet) -> Result<Vec<u8>, String> {
        self.peer_port = packet.peer_port.unwrap_or(self.peer_port);
        let known = self.known.entry(self.peer_port).or_default();
        if packet.own_port.is_some() {
            known.own_port = packet.own_port;
        }
        let frame = packet.frame(self.is_ipv6, self.peer_port, known, &self.last_out);
        frame.map_err(|error| format!("{error:#}"))
    }

    fn leaves(&mut self, wanted: &Packet, least: u64, most: u64) -> Result<(), String> {
        self.peer_port = wanted.peer_port.unwrap_or(self.peer_port);
        let (later, share) = self.side.leeway();
        let base = self.base;
        let Some((at, seen)) = self.next_packet(base + most + later)? else {
            return Err("nothing came out".to_owned());
        };
        self.base = at;
        let known = self.known.entry(self.peer_port).or_default();
        let mut found = seen.differs(wanted, known);
        if let Some((own, peer)) = seen.ports() {
            if peer != self.peer_port {
                found.push(format!("port {peer} of the peer"));
            }
            if wanted.own_port.is_some_and(|wanted| wanted != own) {
                found.push(format!("port {own}"));
            }
        }
        if at.saturating_sub(base) < least * share / 100 {
            found.push(format!("after {} us", at.saturating_sub(base)));
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(format!("{} (in {seen})", found.join(", ")))
    }

    /// The next packet that comes out until then, and when it came.
    fn next_packet(&mut self, until: u64) -> Result<Option<(u64, Seen)>, String> {
        if let Some(kept) = self.put_back.take() {
            return Ok(Some(kept));
        }
        while let Some((at, frame)) = self.side.leaves(until) {
            match read(&frame).map_err(|error| format!("{error:#}"))? {
                Frame::Question(answer) => self.side.arrives(&answer),
                Frame::Noise => {}
                Frame::Packet(seen) => {
                    let port = seen.ports().map_or(self.peer_port, |(_, peer)| peer);
                    seen.teach(self.known.entry(port).or_default());
                    self.last_out.clone_from(&seen.ip);
                    return Ok(Some((at, seen)));
                }
            }
        }
        Ok(None)
    }
}
