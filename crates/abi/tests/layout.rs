//! Pins what two parties must agree on: sizes and offsets of every field of shared memory
//! and of control messages, and the numbers that go with them, in `layout.txt` beside the
//! version that they belong to. A change without a raised `ABI_VERSION` fails here.
//!
//! After raising it: `FORDWAY_LAYOUT=write cargo test -p fordway-abi`.
#![cfg(not(loom))]

use fordway_abi::ABI_VERSION;
use fordway_abi::control::{self, *};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{self, *};
use fordway_abi::stack::{
    self, Accepted, Answer, Head, Id, Listener, Name, Operation, Request, Served,
};
use std::fmt::Write;
use std::mem::{align_of, offset_of};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/layout.txt");
/// Kinds of messages that are looked for.
const KINDS_MAX: u32 = 256;

fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A line for the type and one for each field. It does not compile until every field is
/// named, but for types `with fillers`, whose private fields cannot be.
macro_rules! layout {
    ($text:ident, $type:ident with fillers { $($field:ident),* }) => {
        let (size, align) = (size_of::<$type>(), align_of::<$type>());
        writeln!($text, "\n{}: {size} bytes, aligned to {align}", stringify!($type)).unwrap();
        $(
            let offset = offset_of!($type, $field);
            let size = size_of_field(|value: &$type| &value.$field);
            writeln!($text, "  {offset:5} {size:5} {}", stringify!($field)).unwrap();
        )*
    };
    ($text:ident, $type:ident { $($field:ident),* }) => {
        layout!($text, $type with fillers { $($field),* });
        let _ = |value: $type| { let $type { $($field: _),* } = value; };
    };
}

macro_rules! messages {
    ($text:ident, $kinds:ident: $($type:ident { $($field:ident),* })*) => { $(
        layout!($text, $type { $($field),* });
        let (kind, fds) = (<$type as Message>::KIND, <$type as Message>::FDS);
        writeln!($text, "  kind {kind}, descriptors {fds:?}").unwrap();
        assert_eq!(control::shape(kind), Some((size_of::<$type>(), fds)));
        $kinds.push(kind);
    )* };
}

macro_rules! numbers {
    ($text:ident: $($path:path),* $(,)?) => { $(
        writeln!($text, "  {} = {}", stringify!($path), $path).unwrap();
    )* };
}

fn present_layout() -> String {
    let mut text = format!("ABI_VERSION {ABI_VERSION}\n");
    writeln!(text, "\nnumbers").unwrap();
    numbers!(text:
        LINE_BYTES, REGION_MAGIC, WAIT_PAGE_MAGIC, SLOT_COUNT, ENDPOINT_BYTES, MARKS_OFFSET,
        ENDPOINTS_OFFSET, ARENA_OFFSET, REGION_BYTES, SEGMENT_LOG2_MIN, SEGMENT_LOG2_MAX,
        SEGMENT_COUNT, MOMENT_COUNT, DOOR_COUNT, DOOR_SHARED, WAIT_PAGE_BYTES,
        shm::tx_state::KERNEL, shm::tx_state::RING, shm::tx_state::BACK, shm::tx_state::WITHDRAWN, shm::tx_state::WITHDRAWING,
        shm::rx_state::OFF, shm::rx_state::READY, shm::rx_state::STOP,
        shm::rx_state::DRAIN,
        shm::tx_flags::SHUT, shm::tx_flags::CLOSED, shm::tx_flags::TELLS,
        HELLO_MAGIC, PACKET_BYTES_MAX, PACKET_FDS_MAX,
        control::status::KERNEL, control::status::CLOSED, control::status::WITHDRAWN,
        control::protocol::TCP, control::protocol::UDP,
        stack::REQUEST_MAGIC, stack::KEY_OPTION, stack::PLUG_BYTES, stack::NAME_BYTES,
        stack::state::IDLE, stack::state::CONNECTING, stack::state::CONNECTED, stack::state::LISTENING,
        stack::state::OVER, stack::head::PACKET_INFO, stack::head::FAILED,
    );
    for policy in [PathPolicy::Auto, PathPolicy::Kernel, PathPolicy::Fast] {
        writeln!(text, "  {policy:?} = {}", policy as u32).unwrap();
    }
    for operation in (0..KINDS_MAX).filter_map(Operation::from_u32) {
        writeln!(text, "  {operation:?} = {}", operation as u32).unwrap();
    }
    for reason in Reason::ALL {
        writeln!(text, "  {} = {}", reason.word(), *reason as u32).unwrap();
    }
    layout!(
        text,
        Purse {
            magic,
            abi_version,
            bytes_max,
            bytes_taken
        }
    );
    layout!(text, RegionHeader with fillers { magic, abi_version, arena_lock, arena_next, arena_free, arena_end });
    layout!(text, MarkBits { summary, words });
    layout!(text, MarkPage { marks, seen });
    layout!(text, SegmentWords { start, place });
    layout!(text, Endpoint with fillers { tx, rx, wait, cold, tx_own, rx_own, moments });
    layout!(text, MomentLine { moments, count });
    layout!(text, TxLine { tail, moment });
    layout!(text, RxLine { head, segment_seen });
    layout!(
        text,
        WaitLine {
            rx_state,
            cpu,
            rx_doors,
            tx_doors,
            space_mark,
            wants_mark
        }
    );
    layout!(
        text,
        ColdLine {
            generation,
            left_for,
            switch_at,
            segments,
            tx_state,
            tx_flags,
            segment_count
        }
    );
    layout!(
        text,
        TxOwnLine {
            lock,
            lock_process,
            head_seen,
            back_at,
            full_count,
            no_space,
            calls,
            lost
        }
    );
    layout!(
        text,
        RxOwnLine {
            lock,
            lock_process,
            kernel_position,
            tail_seen,
            segment_start,
            segment_place,
            owner,
            drains,
            drain_to
        }
    );
    layout!(text, WaitPage with fillers { magic, abi_version, beat, sleeping, sleep_count });
    layout!(text, Header { kind, length_bytes });
    layout!(
        text,
        Claim {
            cookie,
            netns_cookie,
            fd,
            thread,
            local_ip,
            remote_ip,
            local_port,
            remote_port,
            protocol
        }
    );
    layout!(
        text,
        Id {
            epoch,
            index,
            generation
        }
    );
    layout!(
        text,
        Name {
            family,
            port,
            scope,
            address
        }
    );
    layout!(
        text,
        Served {
            local_ip,
            remote_ip,
            local_port,
            remote_port
        }
    );
    layout!(
        text,
        Request {
            magic,
            operation,
            id,
            key,
            first,
            second,
            length,
            reserved,
            name,
            value
        }
    );
    layout!(
        text,
        Answer {
            error,
            state,
            family,
            kind,
            length,
            local,
            remote,
            value
        }
    );
    layout!(text, Accepted { local, remote });
    layout!(
        text,
        Listener {
            id,
            first,
            local,
            backlog,
            options
        }
    );
    layout!(
        text,
        Head {
            name,
            own,
            flags,
            reserved
        }
    );
    let mut kinds = Vec::new();
    messages!(text, kinds:
        Hello { magic, abi_version, path_policy, rejoining }
        Welcome { abi_version, domain_id, process_id }
        Refuse { abi_version, reason }
        Offer { conn_id, declined, to_all, claim }
        Reject { conn_id, reason, pending }
        Link { link_id, link_key }
        Region { link_id }
        Peer { link_id }
        Pair { conn_id, channel_id, link_id, slot, generation, cuts_through, pad }
        Door { door }
        DoorAck { door }
        PeerDoor { link_id, door, port }
        Status { conn_id, channel_id, status, reason, ring_bytes_tx, ring_bytes_rx }
        Downgrade { channel_id, reason, pad }
        PeerGone { link_id }
        RejoinLink { link_id, link_key }
        RejoinChannel { conn_id, channel_id, link_id, slot, generation, claim }
        OwnDoor { link_id, door, port }
        Everybody { conn_id, reason, own, count, pad, ips }
        Guest { link_id, arena_bytes, peer_arena_bytes }
        LetGo { link_id }
    );
    let known: Vec<u32> = (0..KINDS_MAX)
        .filter(|kind| control::shape(*kind).is_some())
        .collect();
    assert_eq!(kinds, known, "a message is missing in this test");
    text
}

fn version_of(layout: &str) -> Option<u32> {
    layout
        .lines()
        .next()?
        .strip_prefix("ABI_VERSION ")?
        .parse()
        .ok()
}

#[test]
fn a_changed_layout_has_a_new_version() {
    let present = present_layout();
    let pinned = std::fs::read_to_string(PATH).unwrap_or_default();
    if present == pinned {
        return;
    }
    let changed = present
        .lines()
        .filter(|line| !pinned.lines().any(|pinned| pinned == *line))
        .collect::<Vec<_>>()
        .join("\n");
    assert_ne!(
        version_of(&pinned),
        Some(ABI_VERSION),
        "the layout has changed: raise ABI_VERSION in crates/abi/src/lib.rs\n{changed}"
    );
    let writes = std::env::var("FORDWAY_LAYOUT").is_ok_and(|value| value == "write");
    assert!(
        writes,
        "layout.txt is of another version: run this test with FORDWAY_LAYOUT=write\n{changed}"
    );
    std::fs::write(PATH, present).unwrap();
}
