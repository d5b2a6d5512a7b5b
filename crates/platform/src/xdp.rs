//! Frames of one interface by AF_XDP (Documentation/networking/af_xdp.rst), by the crate `xdp`: rings shared with the kernel, and
//! memory that both know (UMEM).
//!
//! ```text
//!   driver of the device ── program: redirect to the map ──► socket of this queue ──► receive(): copied from the UMEM
//!                                                            send(): copied to the UMEM ──► flush(): sent
//! ```
//! A device with a program sends no trains to us and takes none, and nobody says what is known of a checksum: those of what
//! comes are to be complete. On a veth the kernel copies each frame into the UMEM, and out of it.
//!
//! The program is attached by a link: it goes with this value. Nothing of an interface but its first queue is seen, which is
//! all that a veth has unless it is told otherwise. Needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW.

use crate::bpf::{
    Argument, CALL, EXIT, LOAD, LOAD_MAP, MOVE, at, bpf, instruction, load, map, number, owned, put,
};
use crate::queue::Foreign;
use rustix::net::netdevice::name_to_index;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use xdp::slab::{HeapSlab, Slab};
use xdp::socket::{XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{RingConfigBuilder, Umem, WakableRings, nic::NicIndex};

const LINK_CREATE: i32 = 28;
const PROG_TYPE_XDP: u32 = 6;
const MAP_TYPE_XSKMAP: u32 = 17;
/// Kind of attachment.
const XDP: u32 = 37;
/// The helper bpf_redirect_map(map, key, flags).
const REDIRECT_MAP: i32 = 51;
/// What becomes of a frame for which no socket is there: the kernel gets it.
const PASS: i32 = 2;
/// Offset of the queue's number in struct xdp_md.
const QUEUE_INDEX: i16 = 16;
const QUEUES_MAX: u32 = 64;

/// Frames of the UMEM, and of each ring.
const FRAMES: u32 = 2048;
const RING_FRAMES: u32 = 1024;
/// Frames that are taken from a ring at once.
const BATCH: usize = 64;
/// Longest frame that fits one of the UMEM's.
const FRAME_BYTES_MAX: usize = 4096 - 256;

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    kind: u32,
    flags: u32,
}
// SAFETY: no pointers.
unsafe impl Argument for LinkCreate {}

/// See the module.
pub struct Xdp {
    socket: XdpSocket,
    rings: WakableRings,
    received: HeapSlab,
    to_send: HeapSlab,
    umem: Umem,
    /// Something was put into the ring that the kernel was not told of.
    is_behind: bool,
    _link: OwnedFd,
}

impl std::fmt::Debug for Xdp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Xdp")
            .field("socket", &self.socket.raw_fd())
            .finish_non_exhaustive()
    }
}

impl Xdp {
    /// The first queue of this interface.
    pub fn open(interface: &str) -> io::Result<Xdp> {
        let probe = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
        let index = name_to_index(&probe, interface)?;
        let umem = UmemCfgBuilder {
            frame_size: FrameSize::FourK,
            frame_count: FRAMES,
            ..UmemCfgBuilder::default()
        };
        let mut umem = Umem::map(umem.build().map_err(other)?)?;
        let config = RingConfigBuilder {
            rx_count: RING_FRAMES,
            tx_count: RING_FRAMES,
            fill_count: RING_FRAMES,
            completion_count: RING_FRAMES,
        };
        let mut builder = XdpSocketBuilder::new().map_err(other)?;
        let config = config.build().map_err(other)?;
        let (mut rings, flags) = builder.build_wakable_rings(&umem, config).map_err(other)?;
        let socket = builder
            .bind(NicIndex::new(index), 0, flags)
            .map_err(other)?;
        // SAFETY: the UMEM is dropped after the rings, with this value.
        unsafe {
            rings
                .fill_ring
                .enqueue(&mut umem, RING_FRAMES as usize, false)?
        };

        let sockets = map(MAP_TYPE_XSKMAP, 4, QUEUES_MAX)?;
        // SAFETY: the socket is open as long as it is borrowed here.
        put(&sockets, 0, unsafe {
            BorrowedFd::borrow_raw(socket.raw_fd())
        })?;
        let program = load(
            PROG_TYPE_XDP,
            &[
                at(LOAD, 0x12, QUEUE_INDEX, 0),
                instruction(LOAD_MAP[0], LOAD_MAP[1] & 0xf0 | 1, sockets.as_raw_fd()),
                instruction(0, 0, 0),
                instruction(MOVE, 3, PASS),
                instruction(CALL, 0, REDIRECT_MAP),
                instruction(EXIT, 0, 0),
            ],
        )?;
        let link = LinkCreate {
            program: number(&program),
            interface: index,
            kind: XDP,
            flags: 0,
        };
        Ok(Xdp {
            _link: bpf(LINK_CREATE, link).map(owned)?,
            received: HeapSlab::with_capacity(BATCH),
            to_send: HeapSlab::with_capacity(BATCH),
            socket,
            rings,
            umem,
            is_behind: false,
        })
    }

    /// The next frame that came in, copied; `None` if there is none.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.received.is_empty()
            && let Some(ring) = &mut self.rings.rx_ring
        {
            // SAFETY: packets do not leave this value, and the UMEM is dropped last.
            let count = unsafe { ring.recv(&self.umem, &mut self.received) };
            if count == 0 {
                return Ok(None);
            }
        }
        let Some(packet) = self.received.pop_back() else {
            return Ok(None);
        };
        let bytes = packet.len().min(buffer.len());
        let frame = packet.slice_at_offset(0, bytes).map_err(other)?;
        buffer[..bytes].copy_from_slice(frame);
        self.umem.free_packet(packet);
        if self.received.is_empty() {
            // SAFETY: as when the ring was first filled.
            unsafe { self.rings.fill_ring.enqueue(&mut self.umem, BATCH, true)? };
        }
        Ok(Some(bytes))
    }

    /// As [`crate::frames::FrameFile::send_behind`], of a frame that needs nothing done. It leaves with [`Xdp::flush`].
    pub fn send_behind(
        &mut self,
        head: &[u8],
        foreign: &Foreign<'_>,
        from: usize,
    ) -> io::Result<()> {
        let mut rest = [0; FRAME_BYTES_MAX];
        let bytes = foreign.bytes().saturating_sub(from);
        let rest = rest.get_mut(..bytes).ok_or(io::ErrorKind::InvalidInput)?;
        foreign.copy_to(from, rest);
        if self.umem.allocatable() < RING_FRAMES as usize / 2 {
            self.rings.completion_ring.dequeue(&mut self.umem, BATCH);
        }
        // SAFETY: as in `receive`.
        let Some(mut packet) = (unsafe { self.umem.alloc() }) else {
            self.flush()?;
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let written = packet.append(head).and_then(|()| packet.append(rest));
        if let Err(error) = written {
            self.umem.free_packet(packet);
            return Err(other(error));
        }
        self.to_send.push_front(packet);
        if let Some(ring) = &mut self.rings.tx_ring {
            // SAFETY: as in `receive`.
            unsafe { ring.send(&mut self.to_send, false)? };
        }
        self.is_behind = true;
        if let Some(packet) = self.to_send.pop_back() {
            self.umem.free_packet(packet);
            self.flush()?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    /// Has the kernel send what was given to it.
    pub fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_behind) {
            return Ok(());
        }
        // SAFETY: no memory is passed.
        let sent = unsafe {
            libc::sendto(
                self.socket.raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        self.rings
            .completion_ring
            .dequeue(&mut self.umem, RING_FRAMES as usize);
        let error = io::Error::last_os_error();
        match (sent, error.raw_os_error()) {
            (0.., _) => Ok(()),
            // Some have left, or none: the others do at the next call.
            (_, Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) => {
                self.is_behind = true;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the value lives.
        unsafe { BorrowedFd::borrow_raw(self.socket.raw_fd()) }
    }
}

fn other(error: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("{error:?}"))
}
