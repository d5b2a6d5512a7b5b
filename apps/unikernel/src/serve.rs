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

use crate::PROFILE;
use crate::net::Net;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::time::Duration;
use fordway_executor::{Spawner, Timers};
use fordway_netstack::{Error, TcpId, TcpOptions};
use fordway_profile::Procedure;
use fordway_serve::Service;

/// What the tasks of a server share.
pub struct Serving<S> {
    pub net: Rc<Net>,
    pub server: Rc<RefCell<S>>,
    pub spawner: Spawner,
    pub timers: Timers,
}

// By hand: a derived one would want the server to be `Clone`.
impl<S> Clone for Serving<S> {
    fn clone(&self) -> Self {
        Serving {
            net: self.net.clone(),
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
    while drive(&serving, id, &mut conn) {
        signal.wait().await;
    }
    serving.server.borrow_mut().closed(conn);
}

/// Moves all bytes that can be moved; false when the connection is over.
fn drive<S: Service>(serving: &Serving<S>, id: TcpId, conn: &mut S::Conn) -> bool {
    let now_us = serving.timers.now_us();
    let mut server = serving.server.borrow_mut();
    let mut stack = serving.net.stack();
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
            match stack.tcp_send(id, output) {
                Ok(sent) => {
                    server.advance(conn, now_us, sent);
                    has_room = sent == wanted;
                }
                Err(Error::WouldBlock) => has_room = false,
                Err(_) => {
                    let _ = stack.tcp_close(id);
                    return false;
                }
            }
        }
        drop(span);
        if server.is_over(conn) {
            let _ = stack.tcp_close(id);
            return false;
        }
        let span = PROFILE.span(Procedure::AppReceive);
        let mut was_called = false;
        let received = stack.tcp_receive_with(id, |[bytes, _]| {
            was_called = true;
            server.receive(conn, now_us, bytes)
        });
        drop(span);
        match received {
            // It takes no more before its output has gone.
            Ok(0) if was_called && !has_room => return true,
            // It takes nothing and has nothing to say: it never will.
            Ok(0) if was_called && server.output(conn).is_empty() => {
                let _ = stack.tcp_abort(id);
                return false;
            }
            Ok(_) if was_called => {}
            Ok(_) if server.output(conn).is_empty() => {
                server.end(conn);
                let _ = stack.tcp_close(id);
                return false;
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
            Err(_) => {
                let _ = stack.tcp_close(id);
                return false;
            }
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
