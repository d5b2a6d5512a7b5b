//! The rules of a network namespace as its kernel keeps them: what `nft` has loaded there, dumped by
//! nfnetlink (linux/netfilter/nf_tables.h, NFT_MSG_GET*).
//!
//! What comes back are the kernel's own messages, one after the other: tables, chains, sets, objects,
//! elements, rules. A dump that a change came across is made again.

use crate::conntrack::{netfilter_socket, word};
use crate::diag::{attribute, read_u32, split_message};
use crate::netns;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const NEW_SET: u16 = SUBSYSTEM | 9;
const GET_SET: u16 = SUBSYSTEM | 10;
const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
const GET_OBJECT: u16 = SUBSYSTEM | 19;
/// NFTA_SET_TABLE and NFTA_SET_NAME, NFTA_SET_ELEM_LIST_TABLE and _SET.
const TABLE: u16 = 1;
const SET: u16 = 2;

const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x001 | 0x300;
/// The dump is not of one moment.
const NLM_F_DUMP_INTR: u16 = 0x10;
const ATTEMPTS_MAX: usize = 20;
const RECEIVE_BYTES: usize = 64 << 10;

/// All of them, in that order.
pub(crate) fn dump(namespace: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    netns::within(namespace, dump_of_thread)?
}

/// Those of the namespace that this thread is in.
pub(crate) fn dump_of_thread() -> io::Result<Vec<u8>> {
    let socket = netfilter_socket()?;
    for _ in 0..ATTEMPTS_MAX {
        if let Some(messages) = dump_once(&socket)? {
            return Ok(messages);
        }
    }
    Err(io::Error::other("the rules change all the time"))
}

/// `None`: a change came across.
fn dump_once(socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for kind in [GET_TABLE, GET_CHAIN] {
        if !ask(socket, &request(kind, 0, &[]), &mut all)? {
            return Ok(None);
        }
    }
    let mut sets = Vec::new();
    if !ask(socket, &request(GET_SET, 0, &[]), &mut sets)? {
        return Ok(None);
    }
    all.extend(&sets);
    if !ask(socket, &request(GET_OBJECT, 0, &[]), &mut all)? {
        return Ok(None);
    }
    let mut rest = &sets[..];
    while let Some((NEW_SET, body, next)) = split_message(rest) {
        rest = next;
        let (generic, attributes) = body.split_at_checked(GENERIC_BYTES).ok_or_else(invalid)?;
        let named = |at| attribute(attributes, at).ok_or_else(invalid);
        let mut of = word(TABLE, named(TABLE)?);
        of.extend(word(SET, named(SET)?));
        if !ask(socket, &request(GET_ELEMENTS, generic[0], &of), &mut all)? {
            return Ok(None);
        }
    }
    Ok(ask(socket, &request(GET_RULE, 0, &[]), &mut all)?.then_some(all))
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn request(kind: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let length = HEADER_BYTES + GENERIC_BYTES + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Adds the messages of one dump. False: a change came across.
fn ask(socket: &OwnedFd, request: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
    rustix::net::send(socket, request, SendFlags::empty())?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut is_whole = true;
    loop {
        let (_, length) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::TRUNC)?;
        let mut rest = buffer.get(..length).ok_or_else(invalid)?;
        while let Some((kind, body, next)) = split_message(rest) {
            let message = &rest[..rest.len() - next.len()];
            let flags = u16::from_ne_bytes([message[6], message[7]]);
            is_whole &= flags & NLM_F_DUMP_INTR == 0;
            match kind {
                // Behind either stands what went wrong, or 0.
                NLMSG_DONE | NLMSG_ERROR => {
                    return match read_u32(body, 0).unwrap_or(0) as i32 {
                        0 => Ok(is_whole),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                _ => out.extend(message),
            }
            rest = next;
        }
    }
}
