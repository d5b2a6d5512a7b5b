//! What dom0 says on the second serial port: one frame a line, `FW1 CRC JSON`.
//!
//! The line's checksum tells a frame from anything else that may get onto a serial
//! port (a boot loader's text, a kernel's last words in the middle of a line); what is
//! not a frame is counted and skipped. Files travel as hexadecimal in JSON strings.
//! The other end is `assets/runner.py`.

use serde::Deserialize;

const MARK: &str = "FW1 ";

/// A message of dom0's runner.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Frame {
    /// dom0 is up, its tool stack answers.
    Up {
        /// Seconds of emulated time since dom0's kernel started.
        uptime_s: f64,
    },
    /// A case starts.
    Begin {
        /// Its name.
        name: String,
    },
    /// A case has ended.
    Case {
        /// Its name.
        name: String,
        /// Exit status; 124 when its time was up.
        status: i32,
        /// Emulated time that it took.
        seconds: f64,
        /// What it wrote, both streams, the end of it if it was much.
        output: String,
        /// What was found out about a failure: domains, consoles, dom0's log.
        diagnosis: String,
    },
    /// A file that a case left.
    File {
        /// Its name.
        name: String,
        /// Its bytes, two digits each.
        hex: String,
    },
    /// dom0 lives, whatever it does.
    Beat,
    /// All cases have been run.
    End,
}

impl Frame {
    /// The frame in a line, or None if it is none or was damaged.
    pub fn parse(line: &[u8]) -> Option<Frame> {
        let line = std::str::from_utf8(line).ok()?;
        let (crc, json) = line.trim_end().strip_prefix(MARK)?.split_once(' ')?;
        let crc = u32::from_str_radix(crc, 16).ok()?;
        if crc != crc32(json.as_bytes()) {
            return None;
        }
        serde_json::from_str(json).ok()
    }
}

/// The bytes of [`Frame::File`].
pub fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect()
}

/// Whether [`Frame::File`] names a file in the directory that it is written to, and not one
/// elsewhere on the host: a job is root in dom0, and may say anything on the serial port.
pub fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// CRC-32 of IEEE 802.3, as zlib computes it.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ 0xedb8_8320 & (crc & 1).wrapping_neg();
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_frames_and_nothing_else() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let json = r#"{"kind": "begin", "name": "ping"}"#;
        let line = format!("FW1 {:08x} {json}\r", crc32(json.as_bytes()));
        let begin = Frame::Begin {
            name: "ping".to_owned(),
        };
        assert_eq!(Frame::parse(line.as_bytes()), Some(begin));
        let damaged = line.replace("ping", "pong");
        assert_eq!(Frame::parse(damaged.as_bytes()), None);
        assert_eq!(Frame::parse(b"[    1.0] Kernel panic"), None);
        assert_eq!(Frame::parse(b"FW1 zz {}"), None);
    }

    #[test]
    fn a_file_stays_in_its_directory() {
        assert!(is_plain("a.log") && is_plain("..a") && is_plain(" "));
        for name in ["", ".", "..", "/etc/passwd", "../a", "a/b", "a/"] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(from_hex("00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
