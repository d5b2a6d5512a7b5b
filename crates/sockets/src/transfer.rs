//! A whole call of a program: attempts and sleeps, until it has a result.
//!
//! An attempt ([`crate::send()`], [`crate::receive()`]) moves what can be moved now. What a call makes of
//! it is decided here, once for all who make calls ([`Caller`], [`Transfer`]): the library, with the program's
//! buffers, and the simulation, with streams that it knows.
//!
//! Whoever makes many calls tries [`crate::send_short`] and [`crate::receive_short`] first.
//!
//! * A call that may not wait ends with what it has moved, or EAGAIN.
//! * One that may wait sends all, and receives at least what SO_RCVLOWAT or MSG_WAITALL ask for. It
//!   sleeps without any lock ([`Transfer::sleep`]).
//! * Once bytes have moved, an error ends the call with their number, and is told by the next one.
//! * The channel may go meanwhile. A call that has moved nothing is libc's then, whole; of any other
//!   only this call knows what is left, and has libc do that ([`Transfer::rest_by_kernel`]).

use crate::receive::{Place, has_crossed, has_end, is_at_mark};
use crate::{End, Moved, Result, down};
use core::sync::atomic::Ordering;

/// How a whole call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its result.
    Bytes(usize),
    /// It is libc's: the connection has no channel any more, or its number is another's.
    Kernel,
}

/// Whoever makes a call.
pub trait Caller {
    /// The connection.
    type End: End;
    /// The connection, by the number that it goes by now.
    fn end(&self) -> Self::End;
    /// Whether the connection is still the one that the call has found.
    fn is_same(&self) -> bool;
    /// Whether the number that the program has called by is still the connection's.
    fn has_its_number(&self) -> bool;
    /// Whether the call may sleep.
    fn may_wait(&self) -> bool;
    /// Whether a handler has run that ends a call which has moved bytes.
    fn is_interrupted(&self) -> bool;
    /// The same of one that has moved nothing.
    fn is_ended(&self) -> bool {
        self.is_interrupted()
    }
}

/// What a call moves.
pub trait Transfer {
    /// Who makes the call.
    type Caller: Caller;
    /// See [`Caller`].
    fn caller(&self) -> &Self::Caller;
    /// One attempt, behind `done` bytes.
    fn attempt(&mut self, done: usize) -> Result<Moved>;
    /// What is left behind `done` bytes, by libc, which may sleep. `None`: there is a channel again.
    fn rest_by_kernel(&mut self, done: usize) -> Option<Result<usize>>;
    /// Sleeps until another attempt is worth it. `Err`: the call ends (EINTR, EAGAIN).
    fn sleep(&mut self, done: usize) -> Result<()>;
    /// The call may not wait, and has found nothing.
    fn ends_in_vain(&self) {}
}

/// What a receive moves.
pub trait Receive: Transfer {
    /// Whether the bytes stay there (MSG_PEEK).
    fn peeks(&self) -> bool;
    /// With fewer bytes it goes on to wait (SO_RCVLOWAT, MSG_WAITALL).
    fn enough(&self) -> usize;
    /// Waits a little for bytes behind those that a peek has left there, of which no bell tells.
    /// False: the call's time is over.
    fn look_again(&mut self) -> bool;
}

/// Sends `total` bytes.
pub fn send_all(call: &mut impl Transfer, total: usize) -> Result<Done> {
    let mut done = 0;
    loop {
        match attempt(call, done) {
            Ok(Moved::Bytes(count)) => {
                done += count;
                if count == 0 || done == total {
                    return Ok(Done::Bytes(done));
                }
                continue;
            }
            Ok(Moved::Kernel) => {
                match without_channel(call, done, !call.caller().may_wait(), || true) {
                    None => continue,
                    Some(Left::Over(result)) => return result,
                    Some(Left::Moved(count)) => {
                        done += count;
                        if count == 0 || done == total || call.caller().is_interrupted() {
                            return Ok(Done::Bytes(done));
                        }
                        continue;
                    }
                }
            }
            Ok(Moved::Nothing) => {}
            Err(error) => return so_far(done, error),
        }
        if let Err(error) = wait(call, done) {
            return so_far(done, error);
        }
    }
}

/// Receives up to `total` bytes; 0: the end of file.
pub fn receive_enough(call: &mut impl Receive, total: usize) -> Result<Done> {
    let before = Place::of(&call.caller().end());
    let mut done = 0;
    let enough = call.enough();
    loop {
        let has_enough = done != 0 && done >= enough;
        match attempt(call, done) {
            Ok(Moved::Bytes(count)) if call.peeks() => {
                let is_over = count == 0 || count >= enough || !call.caller().may_wait();
                if is_over || has_end(&call.caller().end()) || !call.look_again() {
                    return Ok(Done::Bytes(count));
                }
                continue;
            }
            Ok(Moved::Bytes(count)) => {
                done += count;
                if count == 0 || done == total {
                    return Ok(Done::Bytes(done));
                }
                let end = call.caller().end();
                if (done < enough || has_crossed(&end, before)) && !is_at_mark(&end) {
                    continue;
                }
                return Ok(Done::Bytes(done));
            }
            Ok(Moved::Nothing) if has_enough => return Ok(Done::Bytes(done)),
            Ok(Moved::Kernel) => {
                let ends = !call.caller().may_wait() || has_enough;
                let end = call.caller().end();
                let sleeps = || enough > 1 || !end.await_bytes(0);
                match without_channel(call, done, ends, sleeps) {
                    None => continue,
                    Some(Left::Over(result)) => return result,
                    Some(Left::Moved(count)) => {
                        done += count;
                        if count == 0 || done >= enough || call.peeks() {
                            return Ok(Done::Bytes(done));
                        }
                        continue;
                    }
                }
            }
            Ok(Moved::Nothing) => {}
            Err(error) => return so_far(done, error),
        }
        if let Err(error) = wait(call, done) {
            return so_far(done, error);
        }
    }
}

/// Before an attempt: what the connection asks for besides data.
pub fn attend(end: &impl End) -> Result<()> {
    match end.state().attention.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => down::attend(end),
    }
}

/// An attempt of a call that goes on.
fn attempt(call: &mut impl Transfer, done: usize) -> Result<Moved> {
    let end = call.caller().end();
    attend(&end)?;
    match end.has_channel() {
        true => call.attempt(done),
        false => Ok(Moved::Kernel),
    }
}

/// What is left of a call whose connection has no channel any more.
enum Left {
    Over(Result<Done>),
    Moved(usize),
}

/// `None`: there is a channel again. `ends`: with what it has, the call need not go on. `sleeps`: whether libc's call would
/// sleep.
#[cold]
fn without_channel(
    call: &mut impl Transfer,
    done: usize,
    ends: bool,
    sleeps: impl FnOnce() -> bool,
) -> Option<Left> {
    if done == 0 && (!call.caller().is_same() || call.caller().has_its_number()) {
        // libc's call would begin anew, and sleep behind a handler that was to end this one.
        let is_over = call.caller().may_wait() && call.caller().is_ended() && sleeps();
        let result = if is_over {
            Err(libc::EINTR)
        } else {
            Ok(Done::Kernel)
        };
        return Some(Left::Over(result));
    }
    if ends || !call.caller().is_same() {
        return Some(Left::Over(Ok(Done::Bytes(done))));
    }
    Some(match call.rest_by_kernel(done)? {
        Ok(count) => Left::Moved(count),
        Err(error) => Left::Over(so_far(done, error)),
    })
}

#[inline]
fn wait(call: &mut impl Transfer, done: usize) -> Result<()> {
    if call.caller().may_wait() {
        return call.sleep(done);
    }
    call.ends_in_vain();
    Err(libc::EAGAIN)
}

/// What was moved, if anything was: then the error is the next call's.
fn so_far(done: usize, error: i32) -> Result<Done> {
    match done {
        0 => Err(error),
        count => Ok(Done::Bytes(count)),
    }
}
