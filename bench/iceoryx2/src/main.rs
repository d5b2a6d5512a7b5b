//! The two plain programs of a conversation over iceoryx2, as `fordway-bench end` plays them
//! over other wires, and with the same arguments. A program of its own, because iceoryx2
//! brings more crates than all of `fordway` needs without it.
//!
//! Each direction is a service of publish-subscribe with one publisher and one subscriber,
//! without history and without overflow: who finds the queue full waits. Messages are copied
//! in and out, as a socket's are. An empty message is the end, and so is a driver that left;
//! the serving end leaves after it, for what a publisher has sent may go with it. Both ends
//! poll; a peer that is silent for too long has failed. What iceoryx2 keeps in files lies in
//! a directory of the bench's; its shared memory has that directory's name in front, so that
//! the bench can remove what a program that was ended leaves there.
#![forbid(unsafe_code)]

use anyhow::{Result, anyhow, bail, ensure};
use clap::{Parser, ValueEnum};
use fordway_bench::micro::end::{self, Talk};
use fordway_bench::micro::measure::Measure;
use fordway_bench::micro::wire::Talker;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe;
use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS: u32 = 10_000;
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Messages that may lie in a queue: this many bytes, within bounds.
const QUEUE_BYTES: usize = 8 << 20;
const QUEUE_MIN: usize = 2;
const QUEUE_MAX: usize = 256;

#[derive(Parser)]
struct Args {
    /// As the bench starts both kinds of programs.
    #[arg(value_parser = ["end"])]
    _name: String,
    role: Role,
    /// Over which wire other programs would talk.
    #[arg(long = "wire")]
    _wire: String,
    #[arg(long)]
    work: Talk,
    /// Directory of iceoryx2's files.
    #[arg(long)]
    at: String,
    #[arg(long)]
    size: usize,
    #[command(flatten)]
    measure: Measure,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Serve,
    Drive,
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Fatal);
    let args = Args::parse();
    ensure!(args.measure.idle == 0, "no crowds here");
    let mut peer = Peer::new(&args)?;
    let mut buffer = vec![0u8; args.size];
    match (args.role, args.work) {
        (Role::Serve, Talk::Rtt) => end::echo(&mut peer, &mut buffer),
        (Role::Serve, Talk::Stream) => {
            end::count(&mut peer, &mut buffer)?;
            poll(|| Ok(peer.is_alone().then_some(())))
        }
        (Role::Drive, Talk::Rtt) => {
            end::print(&end::round_trips(&mut peer, args.size, &args.measure)?)
        }
        (Role::Drive, Talk::Stream) => {
            end::print(&end::stream(&mut peer, args.size, &args.measure)?)
        }
        _ => bail!("not over iceoryx2"),
    }
}

/// One end.
struct Peer {
    to: Publisher<ipc::Service, [u8], ()>,
    from: Subscriber<ipc::Service, [u8], ()>,
    /// Who is at the other end of `from`.
    service: publish_subscribe::PortFactory<ipc::Service, [u8], ()>,
    /// Whether somebody has been there.
    has_talked: bool,
    _node: Node<ipc::Service>,
}

impl Peer {
    /// The driving end returns when the serving end is there.
    fn new(args: &Args) -> Result<Peer> {
        let mut config = Config::default();
        let path = iceoryx2::prelude::Path::new(args.at.as_bytes());
        let path = path.map_err(|error| anyhow!("{}: {error:?}", args.at))?;
        config.global.set_root_path(&path);
        let name = args.at.rsplit('/').next().unwrap_or_default();
        let prefix = FileName::new(name.as_bytes());
        config.global.prefix = prefix.map_err(|error| anyhow!("{name}: {error:?}"))?;
        let node = NodeBuilder::new()
            .config(&config)
            .create::<ipc::Service>()?;
        let queue = (QUEUE_BYTES / args.size).clamp(QUEUE_MIN, QUEUE_MAX);
        let service = |name: &str| -> Result<_> {
            let name = ServiceName::new(name)?;
            Ok(node
                .service_builder(&name)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_borrowed_samples(1)
                .subscriber_max_buffer_size(queue)
                .enable_safe_overflow(false)
                .open_or_create()?)
        };
        let (there, back) = (service("there")?, service("back")?);
        let (to, from) = match args.role {
            Role::Serve => (&back, &there),
            Role::Drive => (&there, &back),
        };
        // The subscriber first: who sees the publisher may send.
        let from_port = from.subscriber_builder().create()?;
        let to_port = to
            .publisher_builder()
            .initial_max_slice_len(args.size.max(size_of::<u64>()))
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        if args.role == Role::Drive {
            poll(|| {
                let there = to.dynamic_config().number_of_subscribers() != 0
                    && from.dynamic_config().number_of_publishers() != 0;
                Ok(there.then_some(()))
            })?;
        }
        Ok(Peer {
            to: to_port,
            from: from_port,
            service: match args.role {
                Role::Serve => there,
                Role::Drive => back,
            },
            has_talked: false,
            _node: node,
        })
    }

    /// Whether nobody sends to us (any more).
    fn is_alone(&self) -> bool {
        self.service.dynamic_config().number_of_publishers() == 0
    }
}

impl Talker for Peer {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // A message for a full queue whose subscriber has not looked yet reaches nobody.
        poll(|| {
            let sample = self.to.loan_slice_uninit(bytes.len())?;
            let reached = sample.write_from_slice(bytes).send()?;
            Ok((reached != 0).then_some(()))
        })
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let (mut looks, has_talked) = (0u32, self.has_talked);
        self.has_talked = true;
        poll(|| {
            let Some(sample) = self.from.receive()? else {
                looks += 1;
                let is_gone = has_talked && looks.is_multiple_of(LOOKS) && self.is_alone();
                return Ok(is_gone.then_some(0));
            };
            let bytes = sample.payload();
            ensure!(bytes.len() <= buffer.len(), "a message of another size");
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(Some(bytes.len()))
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.send(&[])
    }
}

/// Looks until there is something.
fn poll<T>(mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let mut looks = 0u32;
    let mut start = None;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::hint::spin_loop();
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            let start = *start.get_or_insert_with(Instant::now);
            ensure!(start.elapsed() < SILENCE_MAX, "the peer is silent");
        }
    }
}
