//! Captured frames, from a file in pcap's or pcapng's format.

use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Most frames of one file that are taken.
const FRAMES_MAX: usize = 100_000;
/// Larger than any block of a capture with frames of at most 64 KB.
const BUFFER_BYTES: usize = 1 << 20;

/// One Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it was seen, after the first one.
    pub at_ns: u64,
    /// As captured.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Source and destination of the IP packet, if it is one.
    pub fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        let bytes = &self.bytes;
        let four = |at: usize| {
            let ip: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(IpAddr::from(ip))
        };
        let six = |at: usize| {
            let ip: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
            Some(IpAddr::from(ip))
        };
        match bytes.get(12..14) {
            Some([0x08, 0x00]) => (four(26), four(30)),
            Some([0x86, 0xdd]) => (six(22), six(38)),
            _ => (None, None),
        }
    }
}

/// All frames of a file.
pub fn read(file: &Path) -> io::Result<Vec<Frame>> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut reader = create_reader(BUFFER_BYTES, File::open(file)?)
        .map_err(|why| bad(format!("no capture ({why})")))?;
    let mut frames = Vec::new();
    let mut ethernet = false;
    let mut first_us = None;
    while frames.len() < FRAMES_MAX {
        let (used, block) = match reader.next() {
            Ok(block) => block,
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|why| bad(why.to_string()))?;
                continue;
            }
            Err(why) => return Err(bad(why.to_string())),
        };
        let found = match &block {
            PcapBlockOwned::LegacyHeader(header) => {
                ethernet = header.network == Linktype::ETHERNET;
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(header)) => {
                ethernet = header.linktype == Linktype::ETHERNET;
                None
            }
            PcapBlockOwned::Legacy(packet) => {
                let at_us = u64::from(packet.ts_sec) * 1_000_000 + u64::from(packet.ts_usec);
                Some((at_us, packet.data, packet.caplen))
            }
            // Microseconds unless the interface says otherwise; it matters for timeouts only.
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let at_us = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                Some((at_us, packet.data, packet.caplen))
            }
            PcapBlockOwned::NG(_) => None,
        };
        if let Some((at_us, data, length)) = found {
            if !ethernet {
                return Err(bad("no capture of Ethernet frames".into()));
            }
            let first_us = *first_us.get_or_insert(at_us);
            frames.push(Frame {
                at_ns: at_us.saturating_sub(first_us).saturating_mul(1000),
                bytes: data.get(..length as usize).unwrap_or(data).to_vec(),
            });
        }
        drop(block);
        reader.consume(used);
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_pcap_are_read_with_their_times() {
        let mut file = Vec::new();
        let header: [u32; 6] = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1];
        header
            .iter()
            .for_each(|word| file.extend(word.to_le_bytes()));
        let mut frame = [0u8; 34];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[26..34].copy_from_slice(&[10, 77, 0, 3, 10, 77, 0, 4]);
        for at_us in [5u32, 7] {
            [1, at_us, 34, 34]
                .iter()
                .for_each(|word| file.extend(word.to_le_bytes()));
            file.extend(frame);
        }
        let path = std::env::temp_dir().join(format!("fordway-frames-{}", std::process::id()));
        std::fs::write(&path, &file).expect("write");
        let frames = read(&path).expect("frames");
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[1].at_ns, 2000);
        let ips = frames[0].addresses();
        assert_eq!(ips.0, Some([10, 77, 0, 3].into()));
        assert_eq!(ips.1, Some([10, 77, 0, 4].into()));
        std::fs::write(&path, &file[..10]).expect("write");
        assert!(read(&path).is_err());
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn a_capture_that_is_no_good_is_said_to_be_so() {
        let path = std::env::temp_dir().join(format!("fordway-bad-{}", std::process::id()));
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let header = words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1]);
        let packet = |length: u32| [&header[..], &words(&[1, 1, length, length])].concat();
        let section = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, !0, !0, 28]);
        let block = |length: u32| [&section[..], &words(&[6, length])].concat();
        for (what, head, bytes) in [
            ("cut off in a packet", packet(1000), 999),
            ("a packet larger than a buffer", packet(3 << 20), 3 << 20),
            ("a packet of any length", packet(u32::MAX), 3 << 20),
            ("cut off in a block", block(1000), 900),
            (
                "a block larger than a buffer",
                block(3 << 20),
                (3 << 20) - 8,
            ),
            ("a block without a length", block(0), 3 << 20),
        ] {
            let mut file = head;
            file.resize(file.len() + bytes, 0);
            std::fs::write(&path, &file).expect("write");
            assert!(read(&path).is_err(), "{what}");
        }
        std::fs::remove_file(&path).expect("remove");
    }
}
