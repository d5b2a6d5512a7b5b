//! libxenvchan of Debian, loaded when it is wanted, as what messages go through: the rival on the same grants and event
//! channels.
//!
//! Its streams are used (`libxenvchan_read`, `libxenvchan_write`), which take messages that are larger than a ring. The
//! server's two rings are of the size asked for, 1 MB at most (`MAX_RING_SIZE` of its source). Whether a call waits says a bit of
//! the handle, for which the library has no function: three pointers and the port lie before it (libxenvchan.h of Xen 4.17).

use crate::{Guest, Outcome, Pipe, check};
use libc::{RTLD_NOW, c_char, c_int, c_void, size_t};
use std::ffi::{CStr, CString};
use std::mem::transmute;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

pub(crate) const RING_BYTES_MAX: usize = 1 << 20;
const NAME: &CStr = c"libxenvchan.so.4.17";
const FLAGS_OFFSET: usize = 28;
const FLAG_BLOCKING: u32 = 1 << 2;

type Handle = *mut c_void;
type Place = NonNull<c_void>;

/// Its functions, as its header declares them.
type ServerInit = unsafe extern "C" fn(Handle, c_int, *const c_char, size_t, size_t) -> Handle;
type ClientInit = unsafe extern "C" fn(Handle, c_int, *const c_char) -> Handle;
type Read = unsafe extern "C" fn(Handle, *mut u8, size_t) -> c_int;
type Write = unsafe extern "C" fn(Handle, *const u8, size_t) -> c_int;
type Descriptor = unsafe extern "C" fn(Handle) -> c_int;
type Close = unsafe extern "C" fn(Handle);

struct Library {
    server_init: ServerInit,
    client_init: ClientInit,
    read: Read,
    write: Write,
    descriptor: Descriptor,
    close: Close,
}

impl Library {
    fn load() -> Outcome<Self> {
        // SAFETY: a library of the system, whose initialisers ask for nothing.
        let library = unsafe { libc::dlopen(NAME.as_ptr(), RTLD_NOW) };
        let library = NonNull::new(library).ok_or("libxenvchan cannot be loaded")?;
        let find = |name: &CStr| {
            // SAFETY: the library stays loaded.
            let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
            NonNull::new(found).ok_or(format!("libxenvchan has no {name:?}"))
        };
        // SAFETY: the types are those of libxenvchan.h; pointers to functions are as large as others.
        unsafe {
            Ok(Self {
                server_init: transmute::<Place, ServerInit>(find(c"libxenvchan_server_init")?),
                client_init: transmute::<Place, ClientInit>(find(c"libxenvchan_client_init")?),
                read: transmute::<Place, Read>(find(c"libxenvchan_read")?),
                write: transmute::<Place, Write>(find(c"libxenvchan_write")?),
                descriptor: transmute::<Place, Descriptor>(find(c"libxenvchan_fd_for_select")?),
                close: transmute::<Place, Close>(find(c"libxenvchan_close")?),
            })
        }
    }
}

/// One end. One thread uses it.
pub(crate) struct Vchan {
    library: Library,
    handle: Handle,
}

impl Vchan {
    /// With a ring of so many bytes each way.
    pub(crate) fn link(guest: &mut Guest, bytes: usize) -> Outcome<Self> {
        let library = Library::load()?;
        // The library has room for paths of 63 characters.
        let node = format!("data/{}-ring-{}", guest.name, guest.steps);
        let peer = c_int::from(guest.peer);
        let handle = if guest.is_server {
            let path = CString::new(node)?;
            // SAFETY: no logger, and a path that lives as long as the call.
            let handle =
                unsafe { (library.server_init)(null_mut(), peer, path.as_ptr(), bytes, bytes) };
            guest.exchange("offers")?;
            handle
        } else {
            guest.exchange("waits")?;
            let path = CString::new(format!("/local/domain/{peer}/{node}"))?;
            // SAFETY: as above.
            unsafe { (library.client_init)(null_mut(), peer, path.as_ptr()) }
        };
        check(!handle.is_null(), "libxenvchan connects")?;
        let vchan = Self { library, handle };
        vchan.set_blocking(true);
        guest.exchange("is there")?;
        Ok(vchan)
    }

    /// Whether calls wait.
    pub(crate) fn set_blocking(&self, blocking: bool) {
        // SAFETY: the word of flags in a handle that is ours until `drop`.
        unsafe {
            let flags = self.handle.byte_add(FLAGS_OFFSET).cast::<u32>();
            let others = *flags & !FLAG_BLOCKING;
            *flags = others | if blocking { FLAG_BLOCKING } else { 0 };
        }
    }

    /// Readable once the peer has rung.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the handle is ours, and keeps its descriptor open until `drop`.
        unsafe { BorrowedFd::borrow_raw((self.library.descriptor)(self.handle)) }
    }
}

impl Pipe for Vchan {
    fn send(&mut self, mut bytes: &[u8]) -> Outcome {
        while !bytes.is_empty() {
            // SAFETY: as many bytes as there are.
            let sent = unsafe { (self.library.write)(self.handle, bytes.as_ptr(), bytes.len()) };
            let sent = usize::try_from(sent).map_err(|_| "libxenvchan_write fails")?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn receive(&mut self, mut buffer: &mut [u8]) -> Outcome {
        while !buffer.is_empty() {
            let (at, room) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: as many bytes as there is room for.
            let count = unsafe { (self.library.read)(self.handle, at, room) };
            let count = usize::try_from(count).map_err(|_| "libxenvchan_read fails")?;
            buffer = &mut buffer[count..];
        }
        Ok(())
    }
}

impl Drop for Vchan {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe { (self.library.close)(self.handle) };
    }
}
