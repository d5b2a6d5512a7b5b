//! The smallest stack that can be started in `fordway-stackd`'s place: it listens on its control socket, and echoes what comes to
//! TCP port 7. The tests of the launch run it. It says that it has the rules, without having any; that of a domain named `hangs` says
//! nothing, that of `liar` answers with all that it should not, that of `refuser` says that it cannot read rules, that of `stale` says so of the rules before, and that of `closer` closes its end.
#![forbid(unsafe_code)]

use fordway_driver::confine::{self, Confined};
use fordway_driver::orders::{self, Order, Report, Said, What};
use fordway_driver::{Frame, FrameNotes, Port};
use fordway_netstack::{Cidr, Config, Event, Offloads, RxChecksum, RxFrame, Stack, TcpOptions};
use fordway_platform::frames::FrameFile;
use fordway_platform::{ipc, launch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let number = std::env::args()
        .nth(1)
        .ok_or("usage: stub_stack CONFIG_FD")?;
    let config: serde_json::Value =
        serde_json::from_reader(File::from(launch::inherited(number.parse()?)?))?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned).ok_or("no text");
    let control = text(&config["control_socket"])?;
    let _control = ipc::listen(Path::new(&control), ipc::Kind::Packets, 0o666)?;
    let answers = [
        ("/hangs/", None),
        ("/liar/", Some(lie as fn(&OwnedFd))),
        ("/refuser/", Some(refuse)),
        ("/stale/", Some(refuse_earlier)),
        ("/closer/", Some(close)),
    ];
    let mut answers = answers.into_iter();
    let answer = answers.find(|(name, _)| control.contains(name));
    if let Some(answer) = answer.map_or(Some(take as fn(&OwnedFd)), |(_, answer)| answer) {
        let own = config["orders"]["own"].as_i64().ok_or("no orders")?;
        let own = launch::inherited(own as i32)?;
        std::thread::spawn(move || answer(&own));
    }
    let mut port = match &config["port"]["queue"]["link"] {
        serde_json::Value::Number(link) => {
            let link = link.as_i64().ok_or("no descriptor")?;
            Port::queue(launch::inherited(link as i32)?)?
        }
        _ => {
            let end = config["port"]["tap"].as_i64().ok_or("no descriptor")?;
            Port::kernel(FrameFile::of_tap(launch::inherited(end as i32)?))
        }
    };
    let mac = fordway_driver::config::Mac::try_from(text(&config["mac"])?)?;
    let mut made = Config::new(mac.0, 7);
    made.link.offloads = Offloads {
        tx_checksum_v4: true,
        tx_checksum_v6: true,
        gso_v4: true,
        gso_v6: true,
        gso_bytes_max: 0,
    };
    let mut stack = Stack::new(made);
    let addresses = config["addresses"].as_array().ok_or("no addresses")?;
    let addresses = addresses.iter().map(|one| {
        let one = text(one)?;
        let (address, bits) = one.split_once('/').ok_or("no prefix")?;
        Ok(Cidr::new(address.parse::<IpAddr>()?, bits.parse()?))
    });
    stack.set_addresses(&addresses.collect::<Result<Vec<_>, Box<dyn Error>>>()?);
    let options = TcpOptions {
        receive_bytes: 1 << 20,
        send_bytes: 1 << 20,
        ..TcpOptions::default()
    };
    stack.tcp_listen(None, 7, 64, options)?;
    // As the real one, which has more calls.
    let uid = config["uid"].as_u64().ok_or("no user")?.try_into()?;
    confine::confine(&Confined {
        uid,
        gid: uid,
        directory: None,
        calls: confine::DRIVER_CALLS,
        files_max: 64,
        file_bytes_max: 16 << 20,
        space_bytes_max: 1 << 30,
        memory_bytes_max: 256 << 20,
    })?;
    serve(&mut stack, &mut port)
}

/// To each order: what is no message, what is none of its parts, counts of what is not there, and no end of it.
fn lie(own: &OwnedFd) {
    let count = |number, of| {
        let said = Said::Counts {
            epoch: 1,
            counters: 1,
            of,
        };
        let report = Report {
            number,
            is_last: false,
            said,
        };
        serde_json::to_vec(&report).unwrap_or_default()
    };
    loop {
        let _ = poll(&mut [PollFd::new(own, PollFlags::IN)], None);
        let Ok((order, _)) = orders::receive::<Order>(own) else {
            continue;
        };
        let messages = [
            count(order.number, vec![(0, u64::MAX, u64::MAX), (1, 1, 1)]),
            count(order.number + 1, vec![(u32::MAX, 1, 1); 100]),
            b"{".to_vec(),
            vec![b'['; orders::BYTES_MAX + 1],
        ];
        // Until there is no room; what comes first, differs.
        let at = order.number as usize % messages.len();
        let messages = messages.iter().cycle().skip(at);
        for message in messages {
            if ipc::send(own, message, &[]).is_err() {
                break;
            }
        }
    }
}

/// To each order of rules: that they are not in force.
fn refuse(own: &OwnedFd) {
    answer_rules(own, |order| vec![(order, Said::Refused("a test".into()))]);
}

/// To each order of rules: that they are in force.
fn take(own: &OwnedFd) {
    answer_rules(own, |order| vec![(order, Said::InForce)]);
}

/// To each order of rules: that those before it are not in force, and that these are.
fn refuse_earlier(own: &OwnedFd) {
    let mut before = 0;
    answer_rules(own, |order| {
        let earlier = std::mem::replace(&mut before, order);
        let refused = Said::Refused("a test".into());
        vec![(earlier, refused), (order, Said::InForce)]
    });
}

/// Says this to orders of rules, and to others that there is nothing.
fn answer_rules(own: &OwnedFd, mut answer: impl FnMut(u64) -> Vec<(u64, Said)>) {
    loop {
        let _ = poll(&mut [PollFd::new(own, PollFlags::IN)], None);
        let Ok((order, _)) = orders::receive::<Order>(own) else {
            continue;
        };
        let said = match order.what {
            What::Rules { .. } => answer(order.number),
            _ => vec![(order.number, Said::Connections(Vec::new()))],
        };
        for (number, said) in said {
            let report = Report {
                number,
                is_last: true,
                said,
            };
            let _ = orders::send(own, &report, &[]);
        }
    }
}

/// To the first order: nothing, ever. (The broker's end is open here as well.)
fn close(own: &OwnedFd) {
    let _ = poll(&mut [PollFd::new(own, PollFlags::IN)], None);
    let _ = rustix::net::shutdown(own, rustix::net::Shutdown::Both);
}

fn serve(stack: &mut Stack, port: &mut Port) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut connections = Vec::new();
    loop {
        let now = start.elapsed().as_micros() as u64 + 1;
        let came = port.receive(|bytes, notes| {
            let checksum = match notes {
                FrameNotes {
                    checksum: Some(_), ..
                } => RxChecksum::Blank,
                FrameNotes {
                    is_checksum_good: true,
                    ..
                } => RxChecksum::Good,
                _ => RxChecksum::Unchecked,
            };
            stack.receive(now, &mut RxFrame { bytes, checksum });
        })?;
        while let Some(event) = stack.event() {
            if let Event::Accept(listener) = event {
                while let Ok((id, _)) = stack.tcp_accept(listener) {
                    connections.push((id, Vec::new()));
                }
            }
        }
        connections.retain_mut(|(id, left): &mut (_, Vec<u8>)| {
            loop {
                while !left.is_empty() {
                    match stack.tcp_send(*id, left) {
                        Ok(count) if count != 0 => drop(left.drain(..count)),
                        Ok(_) => return true,
                        Err(fordway_netstack::Error::WouldBlock) => return true,
                        Err(_) => return false,
                    }
                }
                left.resize(1 << 16, 0);
                match stack.tcp_receive(*id, left) {
                    Ok(0) => {
                        // An error is that of a connection that has ended.
                        let _ = stack.tcp_close(*id);
                        return false;
                    }
                    Ok(count) => left.truncate(count),
                    Err(error) => {
                        left.clear();
                        return error == fordway_netstack::Error::WouldBlock;
                    }
                }
            }
        });
        let has_room = port.send(|buffer| {
            let frame = stack.transmit(now, buffer)?;
            Some(Frame {
                bytes: frame.len_bytes,
                notes: FrameNotes {
                    checksum: frame
                        .checksum
                        .map(|request| (request.start, request.offset)),
                    is_checksum_good: false,
                    gso_bytes: frame.gso_bytes,
                    is_ipv6: frame.is_ipv6,
                },
            })
        })?;
        let may_sleep = came == 0 && port.may_sleep(!has_room);
        let wait_us = match (may_sleep, stack.poll_at()) {
            (false, _) => 0,
            (true, Some(at)) => at.saturating_sub(now).min(1_000_000),
            (true, None) => 1_000_000,
        };
        let timeout = Timespec {
            tv_sec: (wait_us / 1_000_000) as i64,
            tv_nsec: (wait_us % 1_000_000 * 1000) as i64,
        };
        let interest = port.interest();
        poll(&mut [PollFd::new(&*port, interest)], Some(&timeout))?;
        port.woken()?;
    }
}
