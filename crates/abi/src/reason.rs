//! Why a connection is on the kernel path: one closed list, from which `ss`, the
//! manual and the shim all take their words.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, $word:literal, $text:literal, $advice:literal;)+) => {
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

            /// What would change it, for `fordway why`.
            pub fn advice(self) -> &'static str {
                match self { $(Reason::$name => $advice,)+ }
            }

            /// The reason with this word, if there is one.
            pub fn from_word(word: &str) -> Option<Reason> {
                Reason::ALL.iter().copied().find(|reason| reason.word() == word)
            }
        }
    };
}

reasons! {
    /// Too few operations so far.
    Young = 1, "young", "the connection has carried too little to be worth an upgrade",
        "nothing needs to: it is offered after a few calls that move data (four, or what FORDWAY_OFFER_AFTER says)";
    /// One end offered, the other has not yet.
    Waiting = 2, "waiting", "one end has offered the connection, the other end has not (yet)",
        "the far end's next calls; a program that never reads or sends keeps it waiting";
    /// No program under Fordway holds the other end.
    NoPeer = 3, "no-peer", "the other end is outside Fordway or its program is not preloaded",
        "start the program at the other end by fordway run, without --path kernel; fordway why PID says if it cannot have the library";
    /// Addresses were translated on the way, and what the kernel shows of it joins no two ends.
    Nat = 4, "nat", "addresses are translated on the way, by somebody who cannot vouch for both ends",
        "use the domain's own address, or a port that fordway run --publish or the engine's host translates";
    /// The local address was not assigned to the namespace of that end.
    Unassigned = 5, "unassigned", "an end's address was not assigned to its network namespace by the registry",
        "register the namespace: fordway domain attach NAME --ip ADDRESS --pid PID; between the host's programs (--here) and domains, an uplink: fordway up --uplink";
    /// No broker answers.
    NoBroker = 6, "no-broker", "no broker answers on the control socket",
        "start the broker: fordway up";
    /// Shared memory could not be had.
    NoMemory = 7, "no-memory", "shared memory, slots or descriptors for a channel could not be had",
        "a larger ring_memory_max when the broker starts next, a higher limit of descriptors, or fewer idle connections; further calls offer it again, unless its messages need a larger ring than there is";
    /// ABI versions differ.
    Version = 8, "version", "the shim and the broker have unlike ABI versions",
        "start the programs of the older release again; a broker that is older: systemctl restart fordway, or fordway down --keep-domains and fordway up with the options that it had";
    /// `--path kernel`.
    Policy = 9, "policy", "the program was started with --path kernel",
        "start the program without --path kernel";
    /// A program without the shim took over by exec.
    Exec = 10, "exec", "the descriptor was kept across exec",
        "nothing for this connection; those that a program with the library makes itself get rings";
    /// The descriptor was passed by SCM_RIGHTS.
    Passed = 11, "passed", "the descriptor was passed to another process",
        "nothing for this connection; one that a single process accepts and keeps gets rings";
    /// Urgent data.
    Oob = 12, "oob", "urgent data (MSG_OOB) or SO_OOBINLINE was used",
        "a program, or an option of the program, that sends no urgent data";
    /// stdio on a socket.
    Stdio = 13, "stdio", "the descriptor was given to stdio (fdopen)",
        "nothing for this connection; programs that read and send by the descriptor get rings";
    /// Unread data and no waiter in the library.
    Watchdog = 14, "watchdog", "data lay unread and nobody waited for it in the library",
        "nothing at first, for it may rise again; at last a program that waits by poll, select, epoll or a receive";
    /// The broker or the administrator asked.
    Asked = 15, "asked", "the administrator asked for the kernel path",
        "nothing for this connection, which fordway downgrade took off its rings; new ones get rings";
    /// A forked child uses an inherited connection.
    Forked = 16, "forked", "parent and child of a fork both hold the connection",
        "nothing for this connection; a parent that closes what its child serves leaves the child its rings";
    /// A call that the fast path does not carry.
    Unsupported = 17, "unsupported", "a call was used that only the kernel carries (splice, zero copy, error queue)",
        "nothing for this connection; an option of the program that switches that call off";
    /// The peer broke the protocol.
    Protocol = 18, "protocol", "the other end broke the channel protocol",
        "the program at the other end, which is hostile, or has a fault to report";
    /// The same socket is held by two processes.
    Shared = 19, "shared", "two processes offered the same socket",
        "nothing needs to: further calls offer it again once one process has it";
    /// The packet filter has to see each packet, lets none pass, or has not seen the handshake.
    Filter = 20, "filter", "a rule of the packet filter needs each packet, lets none pass, or has not seen the handshake (see: fordway filter trace)",
        "rules that decide by addresses, ports and state of the connection; fordway filter trace names the rule";
    /// Bytes went by the kernel past the library.
    Unseen = 21, "unseen", "a program sent past the library while a ring was in use",
        "nothing for this connection; a program that makes such calls by libc is seen";
    /// The broker could not see whose the socket is.
    Unproven = 22, "unproven", "the broker may not look at the program's descriptors or network namespace, or did not find the socket there",
        "a broker of root, and a program whose descriptors and namespace that broker can see";
    /// The far end is a program, too: the rings to the own stack make way for rings to it.
    CutThrough = 23, "cut-through", "rings to the program's own stack make way for rings to the far end's program",
        "nothing needs to: its next calls give it the new rings";
}
