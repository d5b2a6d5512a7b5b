//! The procedures that are told apart, in one list.

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A procedure on a packet's path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Procedure {
            $($(#[$doc])* $name,)*
        }

        impl Procedure {
            /// All of them, in the order of the path.
            pub const ALL: [Procedure; [$($text),*].len()] = [$(Procedure::$name),*];

            /// Its name on the pages.
            pub const fn name(self) -> &'static str {
                match self { $(Procedure::$name => $text,)* }
            }
        }
    };
}

procedures! {
    /// Waiting for an event.
    Wait = "wait",
    /// Which events there are.
    Events = "events",
    /// Frames from the device's ring.
    DeviceReceive = "device-receive",
    /// A frame through the stack.
    StackReceive = "stack-receive",
    /// The packet filter on its way in.
    FilterInput = "filter-input",
    /// Tasks and timers of the executor.
    Executor = "executor",
    /// Bytes into an application.
    AppReceive = "app-receive",
    /// Bytes out of an application, into the stack.
    AppSend = "app-send",
    /// The packet filter on its way out.
    FilterOutput = "filter-output",
    /// A frame out of the stack.
    StackTransmit = "stack-transmit",
    /// Frames into the device's ring.
    DeviceTransmit = "device-transmit",
    /// Notifying the other side.
    Notify = "notify",
    /// Words of XenStore.
    Store = "store",
}
