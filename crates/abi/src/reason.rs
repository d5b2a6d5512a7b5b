//! Why a connection is on the kernel path: one closed list, from which `ss`, the
//! manual and the shim all take their words.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, $word:literal, $text:literal;)+) => {
        /// Why a connection is (still, or again) on the kernel path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Reason { $($(#[doc = $doc])+ $name = $value,)+ }

        impl Reason {
            /// Every reason, in the order of the manual.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// The reason with this number, if there is one.
            pub fn from_u32(value: u32) -> Option<Reason> {
                match value { $($value => Some(Reason::$name),)+ _ => None }
            }

            /// The word that `fordway ss` prints.
            pub fn word(self) -> &'static str {
                match self { $(Reason::$name => $word,)+ }
            }

            /// One line for the manual.
            pub fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Too few operations so far.
    Young = 1, "young", "the connection has carried too little to be worth an upgrade";
    /// One end offered, the other has not yet.
    Waiting = 2, "waiting", "one end has offered the connection, the other end has not (yet)";
    /// No program under Fordway holds the other end.
    NoPeer = 3, "no-peer", "the other end is outside Fordway or its program is not preloaded";
    /// Addresses were translated on the way, and what the kernel shows of it joins no two ends.
    Nat = 4, "nat", "addresses are translated on the way, by somebody who cannot vouch for both ends";
    /// The local address was not assigned to the namespace of that end.
    Unassigned = 5, "unassigned", "an end's address was not assigned to its network namespace by the registry";
    /// No broker answers.
    NoBroker = 6, "no-broker", "no broker answers on the control socket";
    /// Shared memory could not be had.
    NoMemory = 7, "no-memory", "shared memory, slots or descriptors for a channel could not be had";
    /// ABI versions differ.
    Version = 8, "version", "the shim and the broker have unlike ABI versions";
    /// `--path kernel`.
    Policy = 9, "policy", "the program was started with --path kernel";
    /// A program without the shim took over by exec.
    Exec = 10, "exec", "the descriptor was kept across exec";
    /// The descriptor was passed by SCM_RIGHTS.
    Passed = 11, "passed", "the descriptor was passed to another process";
    /// Urgent data.
    Oob = 12, "oob", "urgent data (MSG_OOB) or SO_OOBINLINE was used";
    /// stdio on a socket.
    Stdio = 13, "stdio", "the descriptor was given to stdio (fdopen)";
    /// Unread data and no waiter in the library.
    Watchdog = 14, "watchdog", "data lay unread and nobody waited for it in the library";
    /// The broker or the administrator asked.
    Asked = 15, "asked", "the administrator asked for the kernel path";
    /// A forked child uses an inherited connection.
    Forked = 16, "forked", "parent and child of a fork both hold the connection";
    /// A call that the fast path does not carry.
    Unsupported = 17, "unsupported", "a call was used that only the kernel carries (splice, zero copy, error queue)";
    /// The peer broke the protocol.
    Protocol = 18, "protocol", "the other end broke the channel protocol";
    /// The same socket is held by two processes.
    Shared = 19, "shared", "two processes offered the same socket";
    /// The packet filter has to see each packet, lets none pass, or has not seen the handshake.
    Filter = 20, "filter", "a rule of the packet filter needs each packet, lets none pass, or has not seen the handshake (see: fordway filter trace)";
    /// Bytes went by the kernel past the library.
    Unseen = 21, "unseen", "a program sent past the library while a ring was in use";
    /// The broker could not see whose the socket is.
    Unproven = 22, "unproven", "the broker may not look at the program's descriptors or network namespace, or did not find the socket there";
    /// The far end is a program, too: the rings to the own stack make way for rings to it.
    CutThrough = 23, "cut-through", "rings to the program's own stack make way for rings to the far end's program";
}
