//! The native API for Python, for each interpreter from 3.9 on (abi3). The module is named `fordway`; its
//! sockets have `fileno`, so `select` and its kin take them.
//!
//! Loans are views of memory that is not Python's ([`loan`]).
#![forbid(unsafe_code)]

mod loan;

use fordway::{Address, Kind, Socket, ToAddress};
use loan::{Lent, Out};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A domain by its name or its number, and a port.
#[derive(FromPyObject)]
enum To {
    Number((u32, u16)),
    Name((String, u16)),
}

impl ToAddress for To {
    fn to_address(&self) -> io::Result<Address> {
        match self {
            To::Number(address) => address.to_address(),
            To::Name((name, port)) => (name.as_str(), *port).to_address(),
        }
    }
}

/// As Python knows a peer.
type From = (u32, u16);

fn pair(address: Address) -> From {
    (address.domain, address.port)
}

fn failed(reason: &io::Error) -> PyErr {
    // Python makes the subclass that belongs to the number.
    PyOSError::new_err((reason.raw_os_error(), reason.to_string()))
}

/// Without the interpreter's lock, and again behind a signal whose handler raises nothing (PEP 475).
fn call<T: Send>(py: Python<'_>, call: impl FnMut() -> io::Result<T> + Send) -> PyResult<T> {
    let mut call = call;
    loop {
        match py.detach(&mut call) {
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted => py.check_signals()?,
            done => return done.map_err(|reason| failed(&reason)),
        }
    }
}

/// A socket between domains: STREAM, DATAGRAM or SEQPACKET.
#[pyclass(name = "Socket", frozen)]
struct PySocket {
    socket: Mutex<Option<Arc<Socket>>>,
    /// What is lent to send from.
    room: Mutex<Option<Out>>,
    /// What is lent to receive.
    shown: Mutex<Option<Out>>,
}

impl PySocket {
    fn of(socket: Socket) -> Self {
        Self {
            socket: Mutex::new(Some(Arc::new(socket))),
            room: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    fn get(&self) -> PyResult<Arc<Socket>> {
        let socket = own(&self.socket).clone();
        socket.ok_or_else(|| errno(libc::EBADF))
    }
}

fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(number: i32) -> PyErr {
    failed(&io::Error::from_raw_os_error(number))
}

#[pymethods]
impl PySocket {
    #[new]
    fn new(kind: i32) -> PyResult<Self> {
        let kind = match kind {
            libc::SOCK_STREAM => Kind::Stream,
            libc::SOCK_DGRAM => Kind::Datagram,
            libc::SOCK_SEQPACKET => Kind::SeqPacket,
            _ => {
                return Err(PyValueError::new_err(
                    "a kind is STREAM, DATAGRAM or SEQPACKET",
                ));
            }
        };
        Socket::new(kind)
            .map(Self::of)
            .map_err(|reason| failed(&reason))
    }

    /// Gives it an address of the own domain, ANY or a port.
    fn bind(&self, py: Python<'_>, address: To) -> PyResult<()> {
        let socket = self.get()?;
        call(py, || socket.bind(address.to_address()?))
    }

    /// Lets others connect; so many may wait for accept.
    #[pyo3(signature = (backlog = 128))]
    fn listen(&self, py: Python<'_>, backlog: i32) -> PyResult<()> {
        let socket = self.get()?;
        call(py, || socket.listen(backlog))
    }

    /// The next connection, and whose it is.
    fn accept(&self, py: Python<'_>) -> PyResult<(Self, From)> {
        let socket = self.get()?;
        let (accepted, address) = call(py, || socket.accept())?;
        Ok((Self::of(accepted), pair(address)))
    }

    /// Connects to a domain's port; of datagrams: names whom send and recv are about.
    fn connect(&self, py: Python<'_>, address: To) -> PyResult<()> {
        let socket = self.get()?;
        call(py, || socket.connect(address.to_address()?))
    }

    /// Sends to the far end. Of a message all or nothing is taken, of a stream what there is room for.
    fn send(&self, py: Python<'_>, data: &[u8]) -> PyResult<usize> {
        let socket = self.get()?;
        call(py, || socket.send(data))
    }

    /// Sends a datagram.
    fn sendto(&self, py: Python<'_>, data: &[u8], address: To) -> PyResult<usize> {
        let socket = self.get()?;
        call(py, || socket.send_to(data, address.to_address()?))
    }

    /// Receives: a message, or of a stream what there is. Nothing is the end of the connection.
    fn recv<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.recvmsg(py, bytes)?.0)
    }

    /// The same, and who has sent a datagram.
    fn recvfrom<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Option<From>)> {
        let (data, _, from) = self.recvmsg(py, bytes)?;
        Ok((data, from))
    }

    /// The same, with the length of the whole message, also where it was cut.
    fn recvmsg<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, usize, Option<From>)> {
        let socket = self.get()?;
        let mut buffer = vec![0; bytes];
        let received = call(py, || socket.recv_from(&mut buffer))?;
        let data = PyBytes::new(py, &buffer[..received.bytes]);
        Ok((data, received.whole, received.from.map(pair)))
    }

    /// Lends room for so many bytes that are to be sent, as a memoryview.
    fn reserve<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Bound<'py, PyAny>> {
        let socket = self.get()?;
        let room = call(py, || socket.reserve_shared(bytes))?;
        loan::lend(py, &self.room, Lent::Room(room), bytes)
    }

    /// Sends the first bytes of what was lent. Its views have to be released before, or it is a BufferError.
    fn commit(&self, py: Python<'_>, bytes: usize) -> PyResult<()> {
        match loan::end(py, &self.room)? {
            Some(Lent::Room(room)) if bytes <= room.len() => {
                let sent = py.detach(|| room.commit(bytes));
                sent.map_err(|reason| failed(&reason))
            }
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// Ends a loan of reserve; nothing is sent.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        loan::end(py, &self.room).map(drop)
    }

    /// Lends what is to be received next, as a memoryview that is only read: a message, or what there is of a
    /// stream. None is the end. A hostile far end may change the bytes at any time: copy what you have to trust.
    fn peek<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let socket = self.get()?;
        // What fails without ctypes is not to fail behind the peek: a message would be lost.
        loan::kind(py)?;
        let Some(shown) = call(py, || socket.peek_shared())? else {
            return Ok(None);
        };
        let bytes = shown.len();
        loan::lend(py, &self.shown, Lent::Shown(shown), bytes).map(Some)
    }

    /// Receives what was lent; of a stream only the first bytes, if it is said how many. Its views have to be released
    /// before, or it is a BufferError.
    #[pyo3(signature = (bytes = None))]
    fn release(&self, py: Python<'_>, bytes: Option<usize>) -> PyResult<()> {
        let Some(Lent::Shown(shown)) = loan::end(py, &self.shown)? else {
            return Err(errno(libc::EINVAL));
        };
        let bytes = bytes.unwrap_or(shown.len());
        py.detach(|| shown.release(bytes));
        Ok(())
    }

    /// Sends what is left of what was accepted by calls that did not sleep.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let socket = self.get()?;
        call(py, || socket.flush())
    }

    /// Whether calls may sleep; else they raise BlockingIOError.
    fn setblocking(&self, blocking: bool) -> PyResult<()> {
        let done = self.get()?.set_nonblocking(!blocking);
        done.map_err(|reason| failed(&reason))
    }

    /// The own address.
    fn getsockname(&self) -> PyResult<From> {
        let address = self.get()?.local_address();
        address.map(pair).map_err(|reason| failed(&reason))
    }

    /// That of the far end.
    fn getpeername(&self) -> PyResult<From> {
        let address = self.get()?.peer_address();
        address.map(pair).map_err(|reason| failed(&reason))
    }

    /// The descriptor, for select and its kin; -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.get().map_or(-1, |socket| socket.as_raw_fd())
    }

    /// Ends the socket, once no view of a loan is left.
    fn close(&self, py: Python<'_>) {
        let closed = own(&self.socket).take();
        let loans = [own(&self.room).take(), own(&self.shown).take()];
        drop(loans);
        py.detach(|| drop(closed));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }
}

/// Sockets between domains (docs/native-api.md).
#[pymodule]
#[pyo3(name = "fordway")]
fn fordway_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySocket>()?;
    module.add("STREAM", libc::SOCK_STREAM)?;
    module.add("DATAGRAM", libc::SOCK_DGRAM)?;
    module.add("SEQPACKET", libc::SOCK_SEQPACKET)?;
    module.add("LOCAL", fordway::LOCAL)?;
    module.add("HOST", fordway::HOST)?;
    module.add("BROADCAST", fordway::BROADCAST)?;
    module.add("ANY", fordway::ANY)?;
    module.add("MESSAGE_BYTES_MAX", fordway::MESSAGE_BYTES_MAX)?;
    module.add_function(wrap_pyfunction!(domain, module)?)?;
    module.add_function(wrap_pyfunction!(own_domain, module)?)
}

/// The number of a domain by its name.
#[pyfunction]
fn domain(py: Python<'_>, name: &str) -> PyResult<u32> {
    call(py, || fordway::domain_of(name))
}

/// The number of the own domain.
#[pyfunction]
fn own_domain(py: Python<'_>) -> PyResult<u32> {
    call(py, fordway::own_domain)
}
