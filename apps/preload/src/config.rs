//! What the launcher says to the shim, read once from the environment that the
//! dynamic linker hands to the constructor (programs like nginx wipe theirs later).

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use fordway_abi::control::PathPolicy;
use fordway_abi::{INSISTED_FILE, env};

/// Longest path of a UNIX socket (man 7 unix).
pub const SOCKET_PATH_BYTES: usize = 108;

/// Calls that move data before a connection is offered: a connection that carries
/// one request and one reply is over before an upgrade has paid.
const OFFER_AFTER_DEFAULT: u32 = 4;
/// An ordinary spin before a sleep: what a wake-up on another CPU costs. Long ones are a multiple
/// ([`crate::spin`]).
const SPIN_US_DEFAULT: u32 = 20;

static ACTIVE: AtomicBool = AtomicBool::new(false);
static POLICY: AtomicU32 = AtomicU32::new(0);
static OFFER_AFTER: AtomicU32 = AtomicU32::new(OFFER_AFTER_DEFAULT);
static SPIN_US: AtomicU32 = AtomicU32::new(SPIN_US_DEFAULT);
static DATAGRAMS: AtomicBool = AtomicBool::new(true);
static HAS_STACK: AtomicBool = AtomicBool::new(false);
static mut SOCKET_PATH: [u8; SOCKET_PATH_BYTES] = [0; SOCKET_PATH_BYTES];
static mut STACK_PATH: [u8; SOCKET_PATH_BYTES] = [0; SOCKET_PATH_BYTES];
/// Empty if it is too long.
static mut INSISTED_PATH: [u8; SOCKET_PATH_BYTES] = [0; SOCKET_PATH_BYTES];

/// Whether there is a broker to speak to, or a stack; without one every call goes straight to libc.
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// `--path`.
pub fn policy() -> PathPolicy {
    PathPolicy::from_u32(POLICY.load(Ordering::Relaxed)).unwrap_or(PathPolicy::Auto)
}

/// Whether the program requires the fast path.
#[inline]
pub fn insists() -> bool {
    POLICY.load(Ordering::Relaxed) == PathPolicy::Fast as u32
}

/// Operations before an offer.
pub fn offer_after() -> u32 {
    OFFER_AFTER.load(Ordering::Relaxed)
}

/// Length of an ordinary spin; 0: none.
pub fn spin_us() -> u32 {
    SPIN_US.load(Ordering::Relaxed)
}

/// Whether UDP sockets use rings too.
pub fn datagrams() -> bool {
    DATAGRAMS.load(Ordering::Relaxed)
}

/// Whether a stack of the program's own serves its sockets.
#[inline]
pub fn has_stack() -> bool {
    HAS_STACK.load(Ordering::Relaxed)
}

/// Path of the stack's socket, zero-terminated.
pub fn stack_path() -> *const [u8; SOCKET_PATH_BYTES] {
    &raw const STACK_PATH
}

/// Path of the broker's socket, zero-terminated.
pub fn socket_path() -> *const [u8; SOCKET_PATH_BYTES] {
    &raw const SOCKET_PATH
}

/// Path of the file that says whether some program requires the fast path, zero-terminated.
pub fn insisted_path() -> *const [u8; SOCKET_PATH_BYTES] {
    &raw const INSISTED_PATH
}

/// The file has this path.
#[cfg(test)]
pub fn pretend_insisted(path: &[u8]) {
    let mut place = [0; SOCKET_PATH_BYTES];
    place[..path.len()].copy_from_slice(path);
    // SAFETY: tests that look at it take turns.
    unsafe { INSISTED_PATH = place };
}

/// A file beside another one, zero-terminated; `None` if its path is too long.
fn beside(path: &[u8], name: &[u8]) -> Option<[u8; SOCKET_PATH_BYTES]> {
    let directory = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    let mut beside = [0; SOCKET_PATH_BYTES];
    let end = directory + name.len();
    let target = beside.get_mut(..end).filter(|_| end < SOCKET_PATH_BYTES)?;
    target[..directory].copy_from_slice(&path[..directory]);
    target[directory..].copy_from_slice(name);
    Some(beside)
}

/// Reads the environment.
///
/// # Safety
/// `environment` is the process's environment: C strings up to a null pointer.
pub unsafe fn read(environment: *const *const c_char) {
    let mut path_length = 0;
    let mut policy = PathPolicy::Auto;
    let mut at = environment;
    // SAFETY: by contract.
    while let Some(entry) = unsafe { (*at).as_ref() } {
        // SAFETY: a C string; the array goes on at least to its null pointer.
        let entry = unsafe {
            at = at.add(1);
            CStr::from_ptr(entry)
        };
        let Some((name, value)) = split(entry.to_bytes()) else {
            continue;
        };
        if name == env::SOCKET.as_bytes() && value.len() < SOCKET_PATH_BYTES {
            path_length = value.len();
            let target: *mut u8 = (&raw mut SOCKET_PATH).cast();
            // SAFETY: shorter than the array; the constructor runs before other threads.
            unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len()) };
            let insisted = beside(value, INSISTED_FILE.as_bytes());
            // SAFETY: the constructor runs before other threads.
            unsafe { INSISTED_PATH = insisted.unwrap_or([0; SOCKET_PATH_BYTES]) };
        } else if name == env::STACK.as_bytes() && value.len() < SOCKET_PATH_BYTES {
            let target: *mut u8 = (&raw mut STACK_PATH).cast();
            // SAFETY: shorter than the array; the constructor runs before other threads.
            unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len()) };
            HAS_STACK.store(!value.is_empty(), Ordering::Relaxed);
        } else if name == env::PATH.as_bytes() {
            policy = match value {
                b"kernel" => PathPolicy::Kernel,
                b"fast" => PathPolicy::Fast,
                _ => PathPolicy::Auto,
            };
        } else if name == env::OFFER_AFTER.as_bytes() {
            OFFER_AFTER.store(
                number(value).unwrap_or(OFFER_AFTER_DEFAULT),
                Ordering::Relaxed,
            );
        } else if name == env::DATAGRAMS.as_bytes() {
            DATAGRAMS.store(value != b"0", Ordering::Relaxed);
        } else if name == env::SPIN_US.as_bytes() {
            SPIN_US.store(number(value).unwrap_or(SPIN_US_DEFAULT), Ordering::Relaxed);
        }
    }
    POLICY.store(policy as u32, Ordering::Relaxed);
    HAS_STACK.fetch_and(policy != PathPolicy::Kernel, Ordering::Relaxed);
    ACTIVE.store(
        (path_length != 0 || has_stack()) && policy != PathPolicy::Kernel,
        Ordering::Relaxed,
    );
}

/// Turns the shim off for good (its tables could not be had).
pub fn switch_off() {
    ACTIVE.store(false, Ordering::Relaxed);
    HAS_STACK.store(false, Ordering::Relaxed);
}

fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = entry.iter().position(|byte| *byte == b'=')?;
    Some((&entry[..equals], &entry[equals + 1..]))
}

fn number(digits: &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for digit in digits {
        value = value
            .checked_mul(10)?
            .checked_add(u32::from(digit.wrapping_sub(b'0')))?;
    }
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_or_none() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"4294967295"), Some(u32::MAX));
        for none in [&b""[..], b"4294967296", b"12x", b"-1", b" 1"] {
            assert_eq!(number(none), None);
        }
        assert_eq!(split(b"A=b=c"), Some((&b"A"[..], &b"b=c"[..])));
        assert_eq!(split(b"A"), None);
    }

    #[test]
    fn a_file_beside_the_socket_has_the_directory_of_it() {
        let text = |path: &[u8], name: &[u8]| {
            let beside = beside(path, name)?;
            let end = beside.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&beside[..end]).into_owned())
        };
        assert_eq!(text(b"/a/b.sock", b"c"), Some("/a/c".into()));
        assert_eq!(text(b"b.sock", b"c"), Some("c".into()));
        let long = [b'/'; SOCKET_PATH_BYTES - 1];
        assert_eq!(text(&long, b"c"), None);
        assert!(text(&long[1..], b"c").is_some());
    }
}
