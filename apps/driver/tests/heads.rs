//! What a stack is given of a frame in a queue: all of it, or its head and where the rest lies.

use fordway_driver::{Frame, FrameNotes, Port};
use fordway_platform::queue::{QueueEnd, Role, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const HEAD: usize = 136;
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn of_large_frames_the_rest_stays_in_the_queue() {
    let (own, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair");
    let mut stack = Port::queue(own).expect("an end");
    let mut driver = QueueEnd::new(other, Role::Driver).expect("an end");
    let shown = poll(&mut [PollFd::new(&stack, PollFlags::IN)], Some(&PATIENCE));
    assert_eq!(shown, Ok(1), "the driver has answered");
    stack.woken().expect("the link");
    let lengths = [60, 1023, 1024, 9_000, 65_549];
    for bytes in lengths {
        let sent = driver.send(|buffer| {
            let places = buffer[..bytes].iter_mut().enumerate();
            places.for_each(|(at, place)| *place = byte(at));
            let notes = FrameNotes::default();
            Some(Frame { bytes, notes })
        });
        assert_eq!(sent, Sent::Frame);
    }
    let mut came = Vec::new();
    let count = stack.receive_heads(HEAD, |arrived| {
        let here = match arrived.rest {
            None => arrived.bytes.len(),
            Some((here, rest)) => {
                // It is not there yet.
                let room = &mut arrived.bytes[here..];
                room.fill(0xff);
                assert_eq!(rest.copy_to(here, room), room.len());
                here
            }
        };
        let mut bytes = arrived.bytes.iter().enumerate();
        assert!(bytes.all(|(at, found)| *found == byte(at)));
        came.push((arrived.bytes.len(), here));
    });
    assert_eq!(count.expect("the port is there"), lengths.len());
    let expected = [
        (60, 60),
        (1023, 1023),
        (1024, HEAD),
        (9_000, HEAD),
        (65_549, HEAD),
    ];
    assert_eq!(came, expected);
    // Whole, for who asks for that.
    let sent = driver.send(|_| {
        let notes = FrameNotes::default();
        Some(Frame {
            bytes: 9_000,
            notes,
        })
    });
    assert_eq!(sent, Sent::Frame);
    let count = stack.receive(|bytes, _| assert_eq!(bytes.len(), 9_000));
    assert_eq!(count.expect("the port is there"), 1);
}
