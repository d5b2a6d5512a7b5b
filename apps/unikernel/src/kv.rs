//! The key-value server of this image, over TCP and UDP.

use crate::net::Net;
use crate::serve::Serving;
use alloc::vec;
use alloc::vec::Vec;
use fordway_kv::Server;
use fordway_netstack::Error;

pub const PORT: u16 = 6379;

/// One command in each datagram, one reply to each.
pub async fn datagrams(serving: Serving<Server>, port: u16) -> Result<(), Error> {
    let (id, signal) = Net::bind(&serving.net, port)?;
    let mut request = vec![0; 65_507];
    let mut reply = Vec::new();
    loop {
        let received = serving.net.stack().udp_receive(id, &mut request);
        match received {
            Ok((len, _, from, to)) => {
                reply.clear();
                let mut server = serving.server.borrow_mut();
                server.datagram(serving.timers.now_us(), &request[..len], &mut reply);
                if !reply.is_empty() {
                    let mut stack = serving.net.stack();
                    let _ = stack.udp_send_from(id, Some(to), from, &reply);
                }
            }
            Err(Error::WouldBlock) => signal.wait().await,
            Err(error) => return Err(error),
        }
    }
}
