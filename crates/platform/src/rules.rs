//! The rules of a network namespace as its kernel keeps them: what `nft` has loaded there, dumped by
//! nfnetlink (linux/netfilter/nf_tables.h, NFT_MSG_GET*).
//!
//! What comes back are the kernel's own messages, one after the other: tables, chains, sets, objects,
//! elements, rules. A dump that a change came across is made again.

use crate::conntrack::netfilter_socket;
use crate::netlink::{self, Socket, attribute, find_attribute, invalid, messages};
use crate::netns;
use std::io;
use std::os::fd::BorrowedFd;

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

/// struct nfgenmsg.
const GENERIC_BYTES: usize = 4;
const ATTEMPTS_MAX: usize = 20;

/// All of them, in that order.
pub(crate) fn dump(namespace: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    netns::within(namespace, dump_of_thread)?
}

/// Those of the namespace that this thread is in.
pub fn dump_of_thread() -> io::Result<Vec<u8>> {
    let socket = netfilter_socket()?;
    for _ in 0..ATTEMPTS_MAX {
        if let Some(messages) = dump_once(&socket)? {
            return Ok(messages);
        }
    }
    Err(io::Error::other("the rules change all the time"))
}

/// `None`: a change came across.
fn dump_once(socket: &Socket) -> io::Result<Option<Vec<u8>>> {
    let ask = |kind, family, attributes: &[u8], out: &mut Vec<u8>| {
        let body = [&[family, 0, 0, 0], attributes].concat();
        let request = netlink::request(kind, netlink::REQUEST | netlink::DUMP, &body);
        socket.dump(&request, |message| out.extend(message.whole))
    };
    let (mut all, mut sets) = (Vec::new(), Vec::new());
    if !ask(GET_TABLE, 0, &[], &mut all)?
        || !ask(GET_CHAIN, 0, &[], &mut all)?
        || !ask(GET_SET, 0, &[], &mut sets)?
    {
        return Ok(None);
    }
    all.extend(&sets);
    if !ask(GET_OBJECT, 0, &[], &mut all)? {
        return Ok(None);
    }
    for message in messages(&sets).take_while(|message| message.kind == NEW_SET) {
        let parts = message.body.split_at_checked(GENERIC_BYTES);
        let (generic, attributes) = parts.ok_or_else(invalid)?;
        let named = |at| find_attribute(attributes, at).ok_or_else(invalid);
        let mut of = attribute(TABLE, named(TABLE)?);
        of.extend(attribute(SET, named(SET)?));
        if !ask(GET_ELEMENTS, generic[0], &of, &mut all)? {
            return Ok(None);
        }
    }
    Ok(ask(GET_RULE, 0, &[], &mut all)?.then_some(all))
}
