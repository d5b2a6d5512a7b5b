//! The web server of this image: files of the ramdisk, or of the archive linked in.

use crate::PROFILE;
use crate::serve::Service;
use alloc::string::String;
use fordway_httpd::{ArchiveError, Conn, Limits, Page, Refused, Server};

pub const PORT: u16 = 80;

/// Made by the build script: what is served without a ramdisk.
static BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/site.tar"));

pub struct Http(Server<'static>);

impl Http {
    /// Whatever its clients send, and do not take, a connection's buffers stay below a quarter of its
    /// share of `memory_bytes`; the network stack has half of them all.
    pub fn new(
        ramdisk: &'static [u8],
        connections_max: usize,
        memory_bytes: usize,
    ) -> Result<Http, ArchiveError> {
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
        Ok(Http(server))
    }

    pub fn files(&self) -> usize {
        self.0.files()
    }
}

impl Service for Http {
    type Conn = Conn<'static>;
    const REFUSAL: &'static [u8] = Refused::REPLY;

    fn accept(&mut self, now_us: u64) -> Option<Self::Conn> {
        self.0.accept(now_us).ok()
    }

    fn closed(&mut self, conn: Self::Conn) {
        self.0.closed(conn);
    }

    fn receive(&mut self, conn: &mut Self::Conn, now_us: u64, bytes: &[u8]) -> usize {
        conn.receive(&mut self.0, now_us, bytes)
    }

    fn output<'a>(&self, conn: &'a Self::Conn) -> &'a [u8] {
        conn.output()
    }

    fn advance(&self, conn: &mut Self::Conn, now_us: u64, bytes: usize) {
        conn.advance(now_us, bytes);
    }

    fn end(&self, conn: &mut Self::Conn) {
        conn.end();
    }

    fn is_over(&self, conn: &Self::Conn) -> bool {
        conn.is_over()
    }

    fn deadline(&self, conn: &Self::Conn) -> u64 {
        conn.deadline()
    }

    fn expire(&mut self, conn: &mut Self::Conn, now_us: u64) {
        conn.expire(&mut self.0, now_us);
    }

    fn tick(&mut self, _: u64, wall_ns: u64) {
        self.0.set_wall_time(wall_ns / 1_000_000_000);
    }
}
