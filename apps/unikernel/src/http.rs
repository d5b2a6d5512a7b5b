//! The web server of this image: files of the ramdisk, or of the archive linked in.

use crate::PROFILE;
use alloc::string::String;
use fordway_httpd::{ArchiveError, Limits, Page, Server};

pub const PORT: u16 = 80;

/// Made by the build script: what is served without a ramdisk.
static BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/site.tar"));

/// Whatever its clients send, and do not take, a connection's buffers stay below a quarter of its
/// share of `memory_bytes`; the network stack has half of them all.
pub fn server(
    ramdisk: &'static [u8],
    connections_max: usize,
    memory_bytes: usize,
) -> Result<Server<'static>, ArchiveError> {
    let share_bytes = memory_bytes / connections_max;
    let most = Limits::default();
    let archive = if ramdisk.is_empty() {
        BUILT_IN
    } else {
        ramdisk
    };
    let mut server = Server::new(
        archive,
        Limits {
            connections_max,
            head_bytes_max: (share_bytes / 8).clamp(1024, most.head_bytes_max),
            queued_bytes_max: (share_bytes / 16).clamp(1024, most.queued_bytes_max),
            ..most
        },
    )?;
    server.add_page("/profile", |_| {
        let mut text = String::new();
        let _ = PROFILE.write_text(&mut text);
        Page {
            content_type: "text/plain",
            body: text.into_bytes(),
        }
    });
    server.add_page("/profile.json", |_| {
        let mut text = String::new();
        let _ = PROFILE.write_json(&mut text);
        Page {
            content_type: "application/json",
            body: text.into_bytes(),
        }
    });
    Ok(server)
}
