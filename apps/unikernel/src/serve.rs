//! A server's connections: one task accepts, one task for each connection moves its bytes.
//!
//! The protocol's state machine (`httpd`, `kv`) is given bytes where they lie in the stack's
//! receive buffer and says what to send; here is only who moves what when:
//!
//! | then | do |
//! |---|---|
//! | output waits | send it until the stack has no room |
//! | the connection is over, and all is sent | close it |
//! | bytes have come | give them to the connection, which may not take all while output waits |
//! | the client's end | tell the connection |
//! | nothing of this | wait for the flow's signal, which the ticker sets too once a second |
//!
//! A connection of another guest that is met has a second way for its bytes ([`crate::guests`]); what is done when is the same.

use crate::PROFILE;
#[cfg(feature = "guests")]
use crate::guests::Guests;
use crate::net::Net;
use alloc::rc::Rc;
use core::cell::{RefCell, RefMut};
use core::time::Duration;
use fordway_executor::{Spawner, Timers};
use fordway_netstack::{Error, Stack, TcpId, TcpOptions};
use fordway_profile::Procedure;
use fordway_serve::Service;

/// What the tasks of a server share.
pub struct Serving<S> {
    pub net: Rc<Net>,
    #[cfg(feature = "guests")]
    pub guests: Rc<Guests>,
    pub server: Rc<RefCell<S>>,
    pub spawner: Spawner,
    pub timers: Timers,
}

// By hand: a derived one would want the server to be `Clone`.
impl<S> Clone for Serving<S> {
    fn clone(&self) -> Self {
        Serving {
            net: self.net.clone(),
            #[cfg(feature = "guests")]
            guests: self.guests.clone(),
            server: self.server.clone(),
            spawner: self.spawner.clone(),
            timers: self.timers.clone(),
        }
    }
}

/// Connections that wait to be accepted.
const BACKLOG: usize = 256;

/// Listens on `port` for as long as the domain lives.
pub async fn listen<S: Service + 'static>(
    serving: Serving<S>,
    port: u16,
    options: TcpOptions,
) -> Result<(), Error> {
    let (listener, signal) = serving.net.listen(port, BACKLOG, options)?;
    loop {
        let accepted = serving.net.stack().tcp_accept(listener);
        match accepted {
            Ok((id, _)) => {
                let work = connection(serving.clone(), id);
                if serving.spawner.spawn(work).is_err() {
                    let _ = serving.net.stack().tcp_abort(id);
                }
            }
            Err(Error::WouldBlock) => signal.wait().await,
            Err(error) => return Err(error),
        }
    }
}

async fn connection<S: Service>(serving: Serving<S>, id: TcpId) {
    let signal = serving.net.flow(id);
    let Some(mut conn) = serving.server.borrow_mut().accept(serving.timers.now_us()) else {
        let mut stack = serving.net.stack();
        let _ = stack.tcp_send(id, S::REFUSAL);
        let _ = stack.tcp_close(id);
        return;
    };
    #[cfg(feature = "guests")]
    if let Some(rings) = serving.guests.offer(&serving.net, id) {
        let mut goes_on = true;
        while goes_on && !rings.is_done_with_rings() {
            goes_on = crate::guests::drive(&serving, &rings, &mut conn);
            if goes_on && !rings.is_done_with_rings() {
                signal.wait().await;
            }
        }
        if goes_on {
            rings.forget();
        }
        serving.guests.closed(&rings);
        if !goes_on {
            return serving.server.borrow_mut().closed(conn);
        }
    }
    while drive(&serving, &mut Plain::new(&serving.net, id), &mut conn) {
        signal.wait().await;
    }
    serving.server.borrow_mut().closed(conn);
}

/// How a connection's bytes go.
pub trait Way {
    /// How much of it there was room for.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Error>;
    /// As [`fordway_netstack::Stack::tcp_receive_with`].
    fn receive(&mut self, read: impl FnOnce(&[u8]) -> usize) -> Result<usize, Error>;
    /// False: it is to be asked again.
    fn close(&mut self) -> bool;
    fn abort(&mut self);
}

/// By the stack alone.
struct Plain<'a> {
    stack: RefMut<'a, Stack>,
    id: TcpId,
}

impl<'a> Plain<'a> {
    fn new(net: &'a Net, id: TcpId) -> Self {
        let stack = net.stack();
        Plain { stack, id }
    }
}

impl Way for Plain<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.stack.tcp_send(self.id, bytes)
    }

    fn receive(&mut self, read: impl FnOnce(&[u8]) -> usize) -> Result<usize, Error> {
        self.stack
            .tcp_receive_with(self.id, |[bytes, _]| read(bytes))
    }

    fn close(&mut self) -> bool {
        let _ = self.stack.tcp_close(self.id);
        true
    }

    fn abort(&mut self) {
        let _ = self.stack.tcp_abort(self.id);
    }
}

/// Moves all bytes that can be moved; false when the connection is over.
pub fn drive<S: Service>(serving: &Serving<S>, way: &mut impl Way, conn: &mut S::Conn) -> bool {
    let now_us = serving.timers.now_us();
    let mut server = serving.server.borrow_mut();
    if now_us >= server.deadline(conn) {
        server.expire(conn, now_us);
    }
    loop {
        let span = PROFILE.span(Procedure::AppSend);
        let mut has_room = true;
        while has_room {
            let output = server.output(conn);
            if output.is_empty() {
                break;
            }
            let wanted = output.len();
            match way.send(output) {
                Ok(sent) => {
                    server.advance(conn, now_us, sent);
                    has_room = sent == wanted;
                }
                Err(Error::WouldBlock) => has_room = false,
                Err(_) => return !way.close(),
            }
        }
        drop(span);
        if server.is_over(conn) {
            return !way.close();
        }
        let span = PROFILE.span(Procedure::AppReceive);
        let mut was_called = false;
        let received = way.receive(|bytes| {
            was_called = true;
            server.receive(conn, now_us, bytes)
        });
        drop(span);
        match received {
            // It takes no more before its output has gone.
            Ok(0) if was_called && !has_room => return true,
            // It takes nothing and has nothing to say: it never will.
            Ok(0) if was_called && server.output(conn).is_empty() => {
                way.abort();
                return false;
            }
            Ok(_) if was_called => {}
            Ok(_) if server.output(conn).is_empty() => {
                server.end(conn);
                return !way.close();
            }
            // The client has ended, and there is something left to say.
            Ok(_) => {
                server.end(conn);
                if !has_room {
                    return true;
                }
            }
            Err(Error::WouldBlock) if server.output(conn).is_empty() || !has_room => return true,
            Err(Error::WouldBlock) => {}
            Err(_) => return !way.close(),
        }
    }
}

/// Once a second: clocks, deadlines.
pub async fn ticker<S: Service>(serving: Serving<S>, wall_at_zero_ns: impl Fn() -> u64) {
    loop {
        let now_us = serving.timers.now_us();
        let wall_ns = wall_at_zero_ns() + now_us * 1000;
        let wall = Duration::from_nanos(wall_ns);
        serving.server.borrow_mut().tick(now_us, wall);
        // dom0 may set its clock, and after a suspend it is another host's.
        #[cfg(feature = "filter")]
        serving.net.stack().set_wall_clock(now_us, wall_ns);
        serving.net.wake_all();
        serving.timers.sleep(1_000_000).await;
    }
}
