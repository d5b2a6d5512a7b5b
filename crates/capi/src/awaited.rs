//! A socket whose calls are awaited, in a runtime of tokio.

use crate::{Address, Kind, Received, Socket, ToAddress};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::io::unix::AsyncFd;

/// See [`Socket`]; each call sleeps in its task alone. Of several tasks, one sends and one receives at a time.
#[derive(Debug)]
pub struct AsyncSocket(AsyncFd<Socket>);

impl AsyncSocket {
    /// A new socket.
    pub fn new(kind: Kind) -> io::Result<Self> {
        Socket::new(kind)?.try_into()
    }

    /// The socket, for calls that do not sleep.
    pub fn get(&self) -> &Socket {
        self.0.get_ref()
    }

    /// The next connection, and whose it is.
    pub async fn accept(&self) -> io::Result<(AsyncSocket, Address)> {
        let accepted = loop {
            let mut ready = self.0.readable().await?;
            if let Ok(accepted) = ready.try_io(|socket| socket.get_ref().accept()) {
                break accepted?;
            }
        };
        Ok((accepted.0.try_into()?, accepted.1))
    }

    /// Connects to a domain's port.
    pub async fn connect(&self, address: impl ToAddress) -> io::Result<()> {
        match self.get().connect(address) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.0.writable().await?.retain_ready();
                self.get().take_error()?.map_or(Ok(()), Err)
            }
            done => done,
        }
    }

    /// Sends to the far end: a message as a whole, of a stream what there is room for.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.when_writable(|socket| socket.send(bytes)).await?;
        self.when_writable(Socket::flush).await?;
        Ok(sent)
    }

    /// Sends a datagram.
    pub async fn send_to(&self, bytes: &[u8], address: impl ToAddress) -> io::Result<usize> {
        let address = address.to_address()?;
        self.when_writable(|socket| socket.send_to(bytes, address))
            .await
    }

    /// Receives: a message, or of a stream what there is. Nothing is the end of the connection.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer).await?.bytes)
    }

    /// The same, with the length of a message that was cut, and who has sent it.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(received) = ready.try_io(|socket| socket.get_ref().recv_from(buffer)) {
                return received;
            }
        }
    }

    async fn when_writable<T>(
        &self,
        mut call: impl FnMut(&Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let mut ready = self.0.writable().await?;
            if let Ok(done) = ready.try_io(|socket| call(socket.get_ref())) {
                return done;
            }
        }
    }
}

impl TryFrom<Socket> for AsyncSocket {
    type Error = io::Error;

    fn try_from(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // SAFETY: a socket keeps its descriptor, open, for as long as it lives.
        let registered = unsafe { AsyncFd::register(socket) };
        Ok(Self(registered?))
    }
}

impl AsRawFd for AsyncSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
