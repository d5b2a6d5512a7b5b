//! A backend, a toolstack and a user that do anything, by the bytes of a fuzzer.
//!
//! [`World`](crate::World) panics at what a guest must never do. Besides: every step ends, what
//! the backend let go is given back, and an honest backend that comes after all that serves.

use crate::world::{BACK, FRONT};
use crate::{BackQueue, Bench, Offer, Packet, frame};
use fordway_netfront::{Config, Gso, State, TxFrame};
use fordway_xen_abi::netif::{RSP_PROD, RxResponse, TxResponse};

const STEPS_MAX: usize = 512;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }
}

pub fn chaos(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let mut bench = Bench::new(offer(&mut input), config(&mut input));
    if input.flag() {
        bench.settle();
    }
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        step(&mut bench, &mut input);
        bench.received.clear();
        bench.backend.sent.clear();
    }
    end(&mut bench);
}

fn offer(input: &mut Bytes<'_>) -> Offer {
    let flags = input.byte();
    let has = |bit: u8| flags & 1 << bit != 0;
    Offer {
        split: has(0),
        queues: has(1).then_some(u32::from(input.byte() % 4) + 1),
        sg: has(2),
        gso: has(3),
        no_csum: has(4),
        csum_ipv6: has(5),
        rx_copy: !has(6),
        ctrl: has(7).then_some(input.word() % 600),
    }
}

fn config(input: &mut Bytes<'_>) -> Config {
    let flags = input.byte();
    let mut config = Config {
        queues_max: u32::from(input.byte() % 4) + 1,
        rx_pages: 18 + usize::from(input.byte()),
        tx_pages: 18 + usize::from(input.byte()),
        ..Config::default()
    };
    let switches = &mut config.switches;
    for (bit, switch) in [
        &mut switches.split,
        &mut switches.suppression,
        &mut switches.gso,
        &mut switches.csum,
        &mut switches.batching,
        &mut switches.persistent,
    ]
    .into_iter()
    .enumerate()
    {
        *switch = flags & 1 << bit == 0;
    }
    config
}

fn step(bench: &mut Bench, input: &mut Bytes<'_>) {
    let kind = input.byte() % 16;
    // States that are not what the backend did leave it with rings that nobody serves.
    bench.backend.spoilt |= matches!(kind, 5 | 11 | 13 | 15);
    match kind {
        0 => bench.poll(),
        1 => send(bench, input),
        2 => bench.netfront.flush(&mut bench.world),
        3 => {
            let _ = bench.netfront.rearm(&mut bench.world);
        }
        4 => bench.backend.step(&mut bench.world),
        5 => {
            let state = State::ALL[usize::from(input.byte()) % State::ALL.len()];
            bench.backend.enter(&mut bench.world, state);
        }
        6 => garbage(bench, input),
        7 | 8 => respond(bench, input, kind == 7),
        9 => {
            let packet = Packet::plain(&frame(usize::from(input.half() % 20_000) + 1, 3));
            bench.backend.deliver(&mut bench.world, 0, &packet);
        }
        10 => {
            let port = u32::from(input.byte());
            bench.world.send_event(port);
        }
        11 => toolstack(bench, input),
        12 => bench.world.poison = input.flag(),
        13 => store(bench, input),
        14 => {
            bench.backend.holds_on = input.flag();
            match input.byte() % 3 {
                0 => bench.backend.let_go(&mut bench.world),
                1 => bench.backend.hold(&mut bench.world, input.half().into()),
                _ => {}
            }
        }
        _ => match input.byte() {
            0 => bench.netfront.close(&mut bench.world),
            1 => bench.netfront.restart(&mut bench.world),
            pages @ 2..40 => bench.world.pages_max = Some(usize::from(pages)),
            40..60 => bench.world.pages_max = None,
            ms => bench.now_ns += u64::from(ms) * 100_000,
        },
    }
}

fn send(bench: &mut Bench, input: &mut Bytes<'_>) {
    let bytes = frame(usize::from(input.half()), 9);
    let cut = usize::from(input.half()).min(bytes.len());
    let flags = input.byte();
    let gso = Gso {
        ipv6: flags & 1 != 0,
        size: 1448,
    };
    let sent = TxFrame {
        parts: &[&bytes[..cut], &[], &bytes[cut..]],
        checksum_blank: flags & 2 != 0,
        gso: (flags & 4 != 0).then_some(gso),
    };
    let _ = bench.netfront.send(&mut bench.world, &sent);
}

/// Any word anywhere in a ring's page, or any bytes in a buffer.
fn garbage(bench: &mut Bench, input: &mut Bytes<'_>) {
    let Bench { world, backend, .. } = bench;
    let which = input.byte();
    let Some(queue) = backend.queues.get(usize::from(which >> 4)) else {
        return;
    };
    let at = usize::from(input.half()) % 1024 * 4;
    let value = input.word();
    match which % 4 {
        0 => world.poke32(queue.tx.grant, at, value),
        1 => world.poke32(queue.rx.grant, at, value),
        // An index a little off is harder to see than one far away.
        2 => {
            let index = queue.rx.rsp_prod.wrapping_add(u32::from(input.byte()));
            world.poke32(queue.rx.grant, RSP_PROD, index);
        }
        _ => world.poke32(value, at, value),
    }
    backend.spoilt = true;
}

/// Answers that nobody asked for, or wrong ones.
fn respond(bench: &mut Bench, input: &mut Bytes<'_>, transmit: bool) {
    let Bench { world, backend, .. } = bench;
    let Some(queue) = backend.queues.first_mut() else {
        return;
    };
    for _ in 0..input.byte() % 40 {
        if transmit {
            transmit_response(queue, world, input);
        } else {
            receive_response(queue, world, input);
        }
    }
    queue.show_rx(world);
    queue.show_tx(world);
    backend.spoilt = true;
}

fn transmit_response(queue: &mut BackQueue, world: &mut crate::World, input: &mut Bytes<'_>) {
    let response = TxResponse {
        id: input.half() % 300,
        status: i16::from(input.byte() % 4) - 2,
    };
    queue.tx.put(world, &[response.word()]);
}

fn receive_response(queue: &mut BackQueue, world: &mut crate::World, input: &mut Bytes<'_>) {
    let right = queue.rx.words::<2>(world, queue.rx.rsp_prod)[0] as u16;
    let flags = input.byte();
    let response = RxResponse {
        id: if flags & 0x80 == 0 {
            right
        } else {
            input.half()
        },
        offset: if flags & 0x40 == 0 { 0 } else { input.half() },
        flags: u16::from(flags & 0x1f),
        status: input.half().cast_signed() % 4200,
    };
    queue.respond(world, response.word());
}

fn toolstack(bench: &mut Bench, input: &mut Bytes<'_>) {
    let Bench { world, backend, .. } = bench;
    match input.byte() % 4 {
        0 => backend.unplug(world),
        1 => {
            backend.disconnect(world);
            backend.remove(world);
        }
        2 => backend.plug_again(world, offer(input)),
        _ => backend.begin(world),
    }
}

/// Keys that the driver reads, with anything in them.
fn store(bench: &mut Bench, input: &mut Bytes<'_>) {
    const KEYS: [&str; 10] = [
        "backend:state",
        "backend:online",
        "backend:feature-sg",
        "backend:multi-queue-max-queues",
        "backend:feature-split-event-channels",
        "backend:feature-ctrl-ring",
        "front:mac",
        "front:backend",
        "front:backend-id",
        "front:state",
    ];
    const VALUES: [&str; 9] = [
        "",
        "0",
        "1",
        "2",
        "6",
        "4294967296",
        "-1",
        "00:16:3e:00:00:",
        "/local/domain/9/backend/vif/1/0",
    ];
    let key = KEYS[usize::from(input.byte()) % KEYS.len()];
    let value = VALUES[usize::from(input.byte()) % VALUES.len()];
    let path = match key.split_once(':') {
        Some(("front", name)) => format!("{FRONT}/{name}"),
        Some((_, name)) => format!("{BACK}/{name}"),
        None => return,
    };
    bench.world.put(&path, value);
}

/// The device goes, then an honest one comes.
fn end(bench: &mut Bench) {
    let Bench { world, backend, .. } = bench;
    world.poison = false;
    world.pages_max = None;
    backend.holds_on = false;
    backend.disconnect(world);
    backend.let_go(world);
    backend.remove(world);
    for _ in 0..400 {
        bench.poll();
    }
    let world = &mut bench.world;
    let left = (
        world.pages_in_use(),
        world.grants_in_use(),
        world.channels_in_use(),
    );
    assert_eq!(left, (0, 0, 0), "pages, grants, channels that were kept");
    bench.backend = crate::Backend::plug(world, Offer::default());
    bench.settle();
    bench.assert_works();
}
