//! Statics of a program that has one processor and takes no interrupts.

/// A value that is reached from one thread of execution only.
pub struct Local<T>(T);

// SAFETY: an image runs on one vCPU with upcalls masked, so that nothing runs beside the one
// thread of execution; a trap ends the domain and does not come back.
unsafe impl<T> Sync for Local<T> {}

impl<T> Local<T> {
    pub const fn new(value: T) -> Self {
        Local(value)
    }

    pub fn get(&self) -> &T {
        &self.0
    }
}
