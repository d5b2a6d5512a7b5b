//! A Xen guest that serves a network.
//!
//! ```text
//!   ┌──────────────────────────── one turn of the main loop ────────────────────────────┐
//!   │ events ─► netfront.poll ─► stack.receive ─► dispatch ─► tasks ─► stack.transmit    │
//!   │                                                                  ─► netfront.send  │
//!   └── sleep until an event, a timer of the stack, a timer of a task ◄── netfront.rearm ◄┘
//! ```
//! One thread, no interrupts. A turn takes everything that has come before it sends anything,
//! so that replies leave together and the other side is notified once.
#![no_std]
#![no_main]

extern crate alloc;

#[cfg(all(feature = "filter", feature = "guests"))]
compile_error!("`filter` or `guests`: no rule is asked about connections that go by rings");

mod dom0;
#[cfg(feature = "guests")]
mod guests;
#[cfg(not(feature = "guests"))]
#[path = "no_guests.rs"]
mod guests;
#[cfg(feature = "httpd")]
mod http;
#[cfg(feature = "kv")]
mod kv;
mod net;
mod options;
#[cfg(feature = "filter")]
mod rules;
mod serve;
mod stack;
mod xen;

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr};
use dom0::Wish;
use fordway_executor::{Executor, Next};
use fordway_netfront as netfront;
use fordway_netfront::{Netfront, Wait};
use fordway_netstack as netstack;
use fordway_netstack::{Cidr, Offloads, Route, Stack};
use fordway_profile::{Procedure, Profile};
use fordway_xen_guest::entropy::Entropy;
use fordway_xen_guest::lifecycle;
use fordway_xen_guest::{Domain, console, console_line, memory, time};
use guests::Guests;
use net::Net;
use options::Options;
use serve::Serving;
use stack::FRAME_BYTES_MAX;
use xen::Xen;

#[cfg(all(feature = "httpd", feature = "kv"))]
compile_error!("one image has one application: httpd or kv");
#[cfg(not(any(feature = "httpd", feature = "kv")))]
compile_error!("an image without an application: choose httpd or kv");

pub static PROFILE: Profile = Profile::new(time::tsc);

/// How long the backend is waited for before the console says so.
const LINK_PATIENCE_NS: u64 = 5_000_000_000;

const IS_KV: bool = cfg!(feature = "kv");

fordway_xen_guest::image!(main);

fn main(domain: Domain) -> ! {
    let started_ns = domain.clock.now_ns();
    let memory_bytes = memory::with(|m| m.page_count()) << 12;
    let mut entropy = Entropy::new(&domain.clock, domain.command_line.0.len() as u64);
    let config = netfront::Config::default();
    let options = match Options::read(domain.command_line, config.switches, memory_bytes) {
        Ok(options) => options,
        Err(unclear) => lifecycle::unsupported(format_args!("what is \"{}\"?", unclear.0)),
    };
    console_line!(
        "fordway: {} of {} MB, {}{}",
        if domain.pv { "PV" } else { "PVH" },
        memory_bytes >> 20,
        if domain.ramdisk.is_empty() {
            "files linked in"
        } else {
            "files of the ramdisk"
        },
        if entropy.is_strong() {
            ""
        } else {
            ", no RDRAND: random numbers are weak"
        },
    );
    let ramdisk = domain.ramdisk;
    let clock = domain.clock;
    let mut xen = Xen::new(domain);
    dom0::start(&mut xen);
    let guests = Guests::new(&mut xen, entropy.next_u64());
    let pages = if stack::is_small(memory_bytes) {
        128
    } else {
        256
    };
    let config = netfront::Config {
        switches: options.switches,
        queues_max: options.queues,
        rx_pages: pages,
        tx_pages: pages,
        ..config
    };
    let mut device = Netfront::new(&mut xen, config);
    let mac = wait_for_link(&mut xen, &mut device, &guests);
    let up = options
        .address
        .map(|own| alloc::format!("up {}", own.address));

    let mut config = netstack::Config::new(mac, entropy.next_u64());
    config.link.offloads = offloads(&device);
    let tasks = stack::tasks(memory_bytes);
    let free_bytes = memory::with(|m| m.free_pages()) << 12;
    config.limits = stack::limits(tasks, free_bytes, IS_KV);
    let mut stack = Stack::new(config);
    let addresses: Vec<Cidr> = stack::addresses(options.address).collect();
    stack.set_addresses(&addresses);
    if options.address.is_some() {
        if let Some(gateway) = options.gateway {
            let everywhere = Cidr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            stack.set_routes(&[Route {
                destination: everywhere,
                gateway,
            }]);
        }
    } else {
        stack.dhcp_start(xen.now_ns() / 1000);
    }
    if let Some(server) = options.name_server {
        stack.dns_set_servers(&[server]);
    }
    let net = Net::new(stack);
    #[cfg(feature = "filter")]
    {
        let now_us = xen.now_ns() / 1000;
        net.stack().set_wall_clock(now_us, clock.wall_ns());
        rules::start(&mut xen, &net, ramdisk, now_us);
    }
    let mut executor = Executor::new(tasks as u32);
    executor.run_ready(xen.now_ns() / 1000);

    #[cfg(feature = "httpd")]
    let (server, default_port) = match http::server(ramdisk, tasks, free_bytes) {
        Ok(server) => (server, http::PORT),
        Err(error) => lifecycle::unsupported(format_args!("the files: {error:?}")),
    };
    #[cfg(feature = "httpd")]
    console_line!("fordway: {} files", server.files());
    #[cfg(feature = "kv")]
    let (server, default_port) = {
        let _ = ramdisk;
        let config = fordway_kv::Config {
            memory_bytes_max: memory_bytes / 8 * 3,
            clients_max: tasks,
            client_bytes_max: memory_bytes / 12,
            // One client alone may hold half of that.
            argument_bytes_max: memory_bytes / 32,
            command_bytes_max: memory_bytes / 24,
            reply_bytes_max: memory_bytes / 24,
            hash_seed: [entropy.next_u64(), entropy.next_u64()],
            ..fordway_kv::Config::default()
        };
        (
            fordway_kv::Server::new(config, xen.now_ns() / 1000),
            kv::PORT,
        )
    };
    let serving = Serving {
        net: net.clone(),
        #[cfg(feature = "guests")]
        guests: guests.clone(),
        server: Rc::new(RefCell::new(server)),
        spawner: executor.spawner(),
        timers: executor.timers(),
    };
    let port = options.port.unwrap_or(default_port);
    let buffers = (options.send_bytes, options.receive_bytes);
    let tcp = stack::tcp_options(buffers, options.congestion, IS_KV);
    let listening = serve::listen(serving.clone(), port, tcp);
    let spawned = executor.spawn(async move {
        if let Err(error) = listening.await {
            console_line!("fordway: the server ends: {error}");
        }
    });
    let ticking = executor.spawn(serve::ticker(serving.clone(), move || {
        clock.wall_at_zero_ns()
    }));
    assert!(spawned.is_ok() && ticking.is_ok(), "two tasks always fit");
    #[cfg(feature = "kv")]
    {
        let work = kv::datagrams(serving, port);
        let _ = executor.spawn(async move {
            let _ = work.await;
        });
    }
    match options.address {
        Some(own) => {
            console_line!(
                "fordway: serving at {}:{port}, {} us after the start",
                own.address,
                (xen.now_ns() - started_ns) / 1000
            );
        }
        None => {
            let _ = executor.spawn(tell_lease(net.clone(), port));
        }
    }
    if let Some(name) = options.lookup {
        let _ = executor.spawn(look_up(net.clone(), executor.timers(), name));
    }
    if let Some(target) = options.ping {
        let work = ping(net.clone(), executor.timers(), target);
        let _ = executor.spawn(work);
    }
    tell_up(&mut xen, up.as_deref());
    run(xen, device, (net, guests), executor, up)
}

/// Tells dom0 that the server serves.
fn tell_up(xen: &mut Xen, up: Option<&str>) {
    if let Some(up) = up {
        xen.write("data/fordway", up);
    }
}

/// Suspends the domain; when it runs again, possibly as another one, all that lies in XenStore is
/// set up anew, and the driver connects.
fn suspend(xen: &mut Xen, device: &mut Netfront<Xen>, guests: &Guests) {
    device.suspend(xen);
    xen.suspend();
    dom0::start(xen);
    guests.listen(xen);
    #[cfg(feature = "filter")]
    rules::listen(xen);
    device.restart(xen);
}

/// Lets the driver connect; the device's address.
fn wait_for_link(xen: &mut Xen, device: &mut Netfront<Xen>, guests: &Guests) -> [u8; 6] {
    let mut complain_ns = xen.now_ns() + LINK_PATIENCE_NS;
    loop {
        xen.take_events();
        match dom0::look(xen, guests) {
            Wish::End(reason) => lifecycle::end(reason),
            Wish::Suspend => suspend(xen, device, guests),
            _ => {}
        }
        device.poll(xen, xen.now_ns(), |_| {});
        if let (true, Some(mac)) = (device.is_up(), device.mac()) {
            return mac;
        }
        if xen.now_ns() >= complain_ns {
            console_line!(
                "fordway: no network device yet: states {:?}",
                device.states()
            );
            complain_ns = u64::MAX;
        }
        xen.sleep((complain_ns != u64::MAX).then_some(complain_ns));
    }
}

fn offloads(device: &Netfront<Xen>) -> Offloads {
    let offers = device.offers();
    Offloads {
        tx_checksum_v4: offers.csum_ipv4,
        tx_checksum_v6: offers.csum_ipv6,
        gso_v4: offers.gso_ipv4 && offers.sg,
        gso_v6: offers.gso_ipv6 && offers.sg,
        gso_bytes_max: FRAME_BYTES_MAX - 14,
    }
}

/// The main loop.
fn run(
    mut xen: Xen,
    mut device: Netfront<Xen>,
    (net, guests): (Rc<Net>, Rc<Guests>),
    mut executor: Executor,
    up: Option<String>,
) -> ! {
    let mut frame = vec![0; FRAME_BYTES_MAX];
    let mut connections = device.counters().connections;
    let mut ending = None;
    loop {
        let now_ns = xen.now_ns();
        let now_us = now_ns / 1000;
        let span = PROFILE.span(Procedure::Events);
        xen.take_events();
        match dom0::look(&mut xen, &guests) {
            Wish::Nothing => {}
            #[cfg(feature = "filter")]
            Wish::Rules => rules::look(&mut xen, &net, now_us),
            Wish::End(reason) => {
                ending = Some(reason);
                device.close(&mut xen);
            }
            Wish::Suspend => {
                suspend(&mut xen, &mut device, &guests);
                tell_up(&mut xen, up.as_deref());
                continue;
            }
        }
        drop(span);
        let span = PROFILE.span(Procedure::DeviceReceive);
        {
            let mut stack = net.stack();
            device.poll(&mut xen, now_ns, |arrived| {
                let _span = PROFILE.span(Procedure::StackReceive);
                let bytes = arrived.bytes;
                let checksum = match arrived.checksum {
                    netfront::Checksum::Unknown => netstack::RxChecksum::Unchecked,
                    netfront::Checksum::Good => netstack::RxChecksum::Good,
                    netfront::Checksum::Blank => netstack::RxChecksum::Blank,
                };
                stack.receive(now_us, &mut netstack::RxFrame { bytes, checksum });
            });
        }
        drop(span);
        if device.counters().connections != connections {
            connections = device.counters().connections;
            let mut stack = net.stack();
            let mut link = stack.link().clone();
            link.offloads = offloads(&device);
            stack.set_link(link);
        }
        net.dispatch();
        guests.turn(&mut xen, now_ns);
        let span = PROFILE.span(Procedure::Executor);
        let next = executor.run_ready(now_us);
        drop(span);
        transmit(&mut xen, &mut device, &net, now_us, &mut frame);
        read_console(&mut xen);
        if let Some(reason) = ending
            && matches!(
                device.states().0,
                netfront::State::Closed | netfront::State::Unknown
            )
        {
            lifecycle::end(reason);
        }
        let stack_us = net.stack().poll_at();
        let task_us = match next {
            Next::Again => Some(now_us),
            Next::At(at_us) => Some(at_us),
            Next::Idle => None,
        };
        let guests_us = guests.next_ns().map(|at_ns| at_ns.div_ceil(1000));
        let mut until_ns = [stack_us, task_us, guests_us]
            .into_iter()
            .flatten()
            .min()
            .map(|us| us * 1000);
        if !guests.may_sleep(&mut xen, now_ns) || until_ns.is_some_and(|at| at <= now_ns) {
            continue;
        }
        match device.rearm(&mut xen) {
            Wait::No => continue,
            Wait::Event(Some(at_ns)) => until_ns = Some(until_ns.map_or(at_ns, |at| at.min(at_ns))),
            Wait::Event(None) => {}
        }
        let _span = PROFILE.span(Procedure::Wait);
        xen.sleep(until_ns);
    }
}

/// Everything that the stack has to send.
fn transmit(xen: &mut Xen, device: &mut Netfront<Xen>, net: &Net, now_us: u64, buffer: &mut [u8]) {
    let mut stack = net.stack();
    loop {
        let span = PROFILE.span(Procedure::StackTransmit);
        let next = stack.transmit(now_us, buffer);
        drop(span);
        let Some(frame) = next else { break };
        let _span = PROFILE.span(Procedure::DeviceTransmit);
        let gso = frame.gso_bytes.map(|size| netfront::Gso {
            ipv6: frame.is_ipv6,
            size,
        });
        let _ = device.send(
            xen,
            &netfront::TxFrame {
                parts: &[&buffer[..frame.len_bytes]],
                checksum_blank: frame.checksum.is_some(),
                gso,
            },
        );
    }
    let _span = PROFILE.span(Procedure::Notify);
    device.flush(xen);
}

/// What is typed is answered with a line about the domain.
fn read_console(xen: &mut Xen) {
    let mut typed = [0; 64];
    if xen.console_rang() && console::read(&mut typed) > 0 {
        let free = memory::with(|m| m.free_pages());
        console_line!(
            "fordway: {} of {} pages free",
            free,
            memory::with(|m| m.page_count())
        );
    }
}

/// Says what DHCP has brought, each time.
async fn tell_lease(net: Rc<Net>, port: u16) {
    loop {
        net.lease.wait().await;
        match net.stack().dhcp_lease() {
            Some(lease) => console_line!(
                "fordway: serving at {}:{port}, by DHCP",
                lease.address.address
            ),
            None => console_line!("fordway: the lease has ended"),
        }
    }
}

/// Asks for a name's addresses, once there is somebody to ask.
async fn look_up(net: Rc<Net>, timers: fordway_executor::Timers, name: &'static str) {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let asked = net.stack().dns_query(timers.now_us(), name, false);
        if asked.is_ok() {
            net.name.wait().await;
            if let Some((_, answer)) = net.stack().dns_answer() {
                match answer {
                    Ok(addresses) => console_line!("fordway: {name} is at {addresses:?}"),
                    Err(error) => console_line!("fordway: {name}: {error:?}"),
                }
                return;
            }
        }
        timers.sleep(1_000_000).await;
    }
    console_line!("fordway: {name}: no name server");
}

/// Four echo requests, a second apart.
async fn ping(net: Rc<Net>, timers: fordway_executor::Timers, target: Ipv4Addr) {
    const COUNT: u16 = 4;
    for sequence in 0..COUNT {
        let sent_us = timers.now_us();
        if let Err(error) = net
            .stack()
            .ping(IpAddr::V4(target), 1, sequence, b"fordway")
        {
            console_line!("fordway: ping {target}: {error}");
        }
        let answered = {
            let wait = net.ping.wait();
            timers.timeout_at(sent_us + 1_000_000, wait).await.is_ok()
        };
        let reply = net.stack().ping_reply();
        match reply {
            Some(reply) if answered => console_line!(
                "fordway: ping {target}: {} answered after {} us",
                reply.from,
                timers.now_us() - sent_us
            ),
            _ => console_line!("fordway: ping {target}: no answer"),
        }
        timers.sleep_until(sent_us + 1_000_000).await;
    }
}
