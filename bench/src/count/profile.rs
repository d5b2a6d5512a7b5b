//! What perf(1)'s samples say of where instructions go.
//!
//! A sample is a process and the functions of the kernel that it was in, the innermost first, or the one instruction of
//! its own that it was at. Three questions are asked of each:
//!
//! - Whose is it ([`Share`])? A process's own code and its system calls are its own. What the kernel does in its name
//!   beyond the cable is not: a program that sends carries the packet through the bridge and, in its softirq, into the
//!   receiver's TCP. So the innermost function that tells a place decides: a device behind the bridge, or IP, is the other
//!   side's; the bridge is nobody's.
//! - Which stage? Of the kernel's functions the innermost one that [`STAGES`] knows; of own code, its crate and module.
//! - Which function?

use crate::instructions::plain;
use std::collections::BTreeMap;

/// Addresses from here on are the kernel's.
const KERNEL_START: u64 = 1 << 63;
const LIBRARY: &str = "libfordway.so";

/// What a process is in the arrangement that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It asks.
    Client,
    /// It answers.
    Server,
    /// fordway-stackd, with its driver in it or not.
    Stack,
    /// fordway-driver.
    Driver,
    /// The kernel's threads, the broker, what else there is. It is counted, and no sample of it looked at.
    Other,
}

impl Role {
    /// As tables name it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Server => "server",
            Role::Stack => "stack",
            Role::Driver => "driver",
            Role::Other => "others",
        }
    }
}

/// Whose instructions they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// The client's: its own code, its calls, and what is received for it.
    Client,
    /// From the client's cable to the domain's device, and back.
    Bridge,
    /// From the domain's device to the server's own code, and back: what this is about.
    Between,
    /// The server's own code.
    Program,
    /// Of others.
    Rest,
}

impl Share {
    /// As tables name it.
    pub fn word(self) -> &'static str {
        match self {
            Share::Client => "client and its kernel",
            Share::Bridge => "bridge",
            Share::Between => "device to program and back",
            Share::Program => "program",
            Share::Rest => "rest",
        }
    }

    /// All, in the order of tables.
    pub const ALL: [Share; 5] = [
        Share::Between,
        Share::Program,
        Share::Client,
        Share::Bridge,
        Share::Rest,
    ];
}

/// Where one sample was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Functions of the kernel, the innermost first.
    Kernel(Vec<String>),
    /// Of the process's own code, as perf(1) knows it: the file, without its directory, and an offset in it; of a file
    /// that it does not know, an address.
    Own(String, u64),
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its process.
    pub pid: u32,
    /// The name of its thread.
    pub name: String,
    /// Where.
    pub place: Place,
}

/// Reads what `perf script -F comm,pid,ip,sym,dso` prints: of each sample a line with name and process, the functions on
/// lines that begin with a tab, and an empty line. A function is an address, a name, and a file in brackets.
pub fn samples(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut head: Option<(u32, &str)> = None;
    let mut frames: Vec<(u64, &str, &str)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.trim().is_empty() {
            if let Some((pid, name)) = head.take() {
                samples.extend(sample(pid, name, &frames));
            }
            frames.clear();
        } else if head.is_none() {
            let parts = line.trim().rsplit_once(char::is_whitespace);
            head = parts.and_then(|(name, pid)| Some((pid.parse().ok()?, name.trim())));
        } else {
            let line = line.trim();
            let (address, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (name, file) = rest.rsplit_once('(').unwrap_or((rest, ""));
            if let Ok(address) = u64::from_str_radix(address, 16) {
                frames.push((address, name.trim(), file.trim_end_matches(')')));
            }
        }
    }
    samples
}

fn sample(pid: u32, name: &str, frames: &[(u64, &str, &str)]) -> Option<Sample> {
    let &(first, _, file) = frames.first()?;
    let place = match first >= KERNEL_START {
        false => Place::Own(file.rsplit('/').next().unwrap_or(file).to_owned(), first),
        true => {
            let kernel = frames.iter().take_while(|frame| frame.0 >= KERNEL_START);
            Place::Kernel(kernel.map(|(_, name, _)| (*name).to_owned()).collect())
        }
    };
    let name = name.to_owned();
    Some(Sample { pid, name, place })
}

/// Stages of the kernel, by how the names of their functions begin. Of a list of functions the innermost one that is
/// found counts, and of one function the first line here.
const STAGES: [(&str, &[&str]); 14] = [
    (
        "timers, interrupts",
        &[
            "tick_",
            "scheduler_tick",
            "update_process_times",
            "hrtimer_",
            "__hrtimer",
            "sysvec_",
            "asm_",
            "__run_timers",
            "run_timer",
            "rcu_core",
        ],
    ),
    (
        "waking",
        &[
            "try_to_wake_up",
            "ttwu_",
            "__wake_up",
            "wake_up_",
            "default_wake_function",
            "autoremove_wake",
            "ep_autoremove_wake",
            "ep_poll_callback",
            "sock_def_",
            "sock_wake",
        ],
    ),
    (
        "scheduler",
        &[
            "schedule",
            "__schedule",
            "finish_task_switch",
            "preempt_schedule",
        ],
    ),
    (
        "epoll",
        &[
            "ep_",
            "do_epoll",
            "epoll_",
            "__x64_sys_epoll",
            "__do_sys_epoll",
        ],
    ),
    ("eventfd", &["eventfd_"]),
    ("UNIX sockets", &["unix_"]),
    (
        "copies",
        &[
            "copy_",
            "_copy_",
            "copyin",
            "copyout",
            "skb_copy_",
            "simple_copy",
            "__skb_datagram_iter",
            "csum_",
            "memcpy",
            "__memcpy",
        ],
    ),
    (
        "buffers",
        &[
            "alloc_skb",
            "__alloc_skb",
            "__build_skb",
            "build_skb",
            "kfree",
            "__kfree_skb",
            "consume_skb",
            "__consume_skb",
            "skb_release",
            "skb_free",
            "skb_clone",
            "__skb_clone",
            "kmem_cache",
            "kmalloc",
            "__kmalloc",
            "__kmem",
            "sock_alloc_send",
            "alloc_page",
            "__alloc_pages",
            "free_unref",
            "skb_page_frag",
        ],
    ),
    (
        "TCP",
        &[
            "tcp_",
            "__tcp_",
            "inet_csk",
            "inet_send",
            "inet_recv",
            "__inet_lookup",
            "sk_stream",
        ],
    ),
    ("packet filter", &["nf_", "nft_"]),
    (
        "IP",
        &[
            "ip_", "__ip_", "ipv4_", "dst_", "fib_", "inet_", "ipv6_", "neigh_",
        ],
    ),
    (
        "device, queue",
        &[
            "dev_",
            "__dev_",
            "veth_",
            "netif_",
            "__netif_",
            "net_rx_action",
            "process_backlog",
            "__napi_poll",
            "napi_",
            "tun_",
            "validate_xmit",
            "enqueue_to_backlog",
            "eth_",
            "__do_softirq",
            "do_softirq",
            "br_",
        ],
    ),
    (
        "files, sockets",
        &[
            "vfs_",
            "ksys_",
            "sock_",
            "__sock",
            "__sys_",
            "__x64_sys_",
            "__fget",
            "fget",
            "fput",
            "new_sync",
            "security_",
            "apparmor_",
            "aa_",
            "rw_verify",
            "__fdget",
            "do_iter",
            "do_readv",
            "do_writev",
            "import_iovec",
            "__import_iovec",
            "sockfd_",
        ],
    ),
    (
        "calls in and out",
        &[
            "entry_",
            "do_syscall",
            "syscall_",
            "exit_to_user",
            "__seccomp",
            "__secure_computing",
            "seccomp_",
        ],
    ),
];

/// The stage of functions of the kernel.
pub fn stage(functions: &[String]) -> &'static str {
    let known = |function: &String| {
        let of =
            |(_, begins): &&(&str, &[&str])| begins.iter().any(|one| function.starts_with(one));
        STAGES.iter().find(of).map(|(stage, _)| *stage)
    };
    functions.iter().find_map(known).unwrap_or("else")
}

/// Whose functions of the kernel are, in the name of a process of this role.
pub fn share(role: Role, functions: &[String]) -> Share {
    let own = match role {
        Role::Client => Share::Client,
        Role::Server | Role::Stack | Role::Driver => Share::Between,
        // The direction of what its softirq carries could not be told.
        Role::Other => return Share::Rest,
    };
    let others = match own {
        Share::Client => Share::Between,
        _ => Share::Client,
    };
    let is_bridge = |name: &str| ["br_", "__br_"].iter().any(|begin| name.starts_with(begin));
    // Which of IP's are seen depends on which of them end in a jump.
    let is_receipt = |name: &str| {
        let begins = [
            "ip_rcv",
            "ip_list_rcv",
            "ip_local_deliver",
            "ip_protocol_deliver",
            "tcp_v4_rcv",
            "arp_rcv",
        ];
        begins.iter().any(|begin| name.starts_with(begin))
    };
    for (at, function) in functions.iter().enumerate() {
        // Into the receiver's cable, what a receiver sends at once, or out of the own one.
        let others_cable = || {
            let mut outer = functions[at..].iter();
            outer.any(|outer| is_bridge(outer) || is_receipt(outer))
        };
        match function.as_str() {
            "veth_xmit" | "tun_net_xmit" if others_cable() => return others,
            "veth_xmit" | "tun_net_xmit" => return own,
            name if is_receipt(name) => return others,
            name if is_bridge(name) => return Share::Bridge,
            // The cable's queue, and what a tap's frame comes by into the bridge.
            "net_rx_action" | "process_backlog" | "netif_receive_skb" | "__do_softirq" => {
                return Share::Bridge;
            }
            _ => {}
        }
    }
    own
}

/// Where a process's own code lies.
#[derive(Clone, Debug, Default)]
pub struct OwnCode {
    /// Of each mapping: its start and end, where it begins in its file, where the file begins in memory, its name.
    mappings: Vec<(u64, u64, u64, u64, String)>,
}

impl OwnCode {
    /// Of the text of proc_pid_maps(5).
    pub fn of_maps(text: &str) -> OwnCode {
        let mut bases: BTreeMap<String, u64> = BTreeMap::new();
        let mut mappings = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [range, _, offset, _, _, path] = words[..] else {
                continue;
            };
            let hex = |digits| u64::from_str_radix(digits, 16).ok();
            let range = range.split_once('-');
            let file = path.rsplit('/').next().unwrap_or(path).to_owned();
            if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end)))
                && let Some(offset) = hex(offset)
            {
                let base = *bases.entry(file.clone()).or_insert(start);
                mappings.push((start, end, offset, base, file));
            }
        }
        OwnCode { mappings }
    }

    /// The file of a place, and the place's address if the file lay at 0, as its table of symbols has it.
    pub fn find(&self, file: &str, place: u64) -> Option<(&str, u64)> {
        let mut mappings = self.mappings.iter();
        mappings.find_map(|(start, end, offset, base, name)| {
            let of_file = (name == file).then(|| place.wrapping_sub(*offset));
            let behind = of_file.into_iter().chain([place.wrapping_sub(*start)]);
            let inside = behind.into_iter().find(|behind| *behind < end - start)?;
            Some((name.as_str(), start - base + inside))
        })
    }

    /// Whether the library is in the process.
    pub fn has_library(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.4 == LIBRARY)
    }
}

/// Whose own code in a file is.
pub fn share_of_own(role: Role, file: &str, code: &OwnCode) -> Share {
    match role {
        Role::Client => Share::Client,
        Role::Stack | Role::Driver => Share::Between,
        // The library's calls are in the C library, too; a server without it has its own alone there.
        Role::Server if file == LIBRARY => Share::Between,
        Role::Server
            if code.has_library()
                && (file.starts_with("libc")
                    || file.starts_with("ld-")
                    || file.starts_with('[')) =>
        {
            Share::Between
        }
        Role::Server => Share::Program,
        Role::Other => Share::Rest,
    }
}

/// The crate and module of a function of ours; of others the crate alone, or the file.
pub fn module(file: &str, function: &str) -> String {
    let name = plain(function);
    let name = name.trim_start_matches(['<', '&', '_']);
    let mut parts = name.split("::");
    match (parts.next(), parts.next()) {
        (Some(krate), Some(module)) if krate.starts_with("fordway") => {
            let module: String = module
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            format!("{krate}::{module}")
        }
        (Some("core" | "alloc" | "std" | "hashbrown"), Some(_)) => "Rust's library".to_owned(),
        _ => file.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(functions: &str) -> Vec<String> {
        functions.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn samples_are_read_as_perf_prints_them() {
        let text = "fordway-bench  412 \n\
            \tffffffff81a01234 tcp_v4_rcv ([kernel.kallsyms])\n\
            \tffffffffc0a00000 br_pass ([bridge])\n\
            \t    7f0012345678 [unknown] ([unknown])\n\
            \n\
            a name with blanks    7 \n\
            \t            5678 run (inlined) (/tmp/bin/fordway-stackd)\n\
            \t               1 [unknown] ([unknown])\n\
            \n\
            swapper     0 \n\
            \n";
        let read = samples(text);
        assert_eq!(read.len(), 2, "{read:?}");
        assert_eq!((read[0].pid, read[0].name.as_str()), (412, "fordway-bench"));
        assert_eq!(read[0].place, Place::Kernel(chain("tcp_v4_rcv br_pass")));
        assert_eq!(
            (read[1].pid, read[1].name.as_str()),
            (7, "a name with blanks")
        );
        let own = Place::Own("fordway-stackd".to_owned(), 0x5678);
        assert_eq!(read[1].place, own);
    }

    #[test]
    fn what_lies_beyond_the_bridge_is_the_other_sides() {
        // A request on its way to Linux's stack, all of it in the client's name.
        let own = "tcp_write_xmit tcp_sendmsg sock_write_iter";
        let softirq = "net_rx_action __do_softirq __local_bh_enable_ip";
        for (functions, share_is) in [
            (own.to_owned(), Share::Client),
            (
                format!("veth_xmit dev_hard_start_xmit ip_output {own}"),
                Share::Client,
            ),
            (
                format!("nft_do_chain br_handle_frame {softirq} {own}"),
                Share::Bridge,
            ),
            (
                format!("veth_xmit br_forward br_handle_frame {softirq} {own}"),
                Share::Between,
            ),
            (
                format!("try_to_wake_up tun_net_xmit br_forward {softirq} {own}"),
                Share::Between,
            ),
            (
                format!("tcp_ack tcp_v4_rcv ip_rcv process_backlog {softirq} {own}"),
                Share::Between,
            ),
            (
                format!("__netif_receive_skb_core process_backlog {softirq} {own}"),
                Share::Bridge,
            ),
        ] {
            let functions = chain(&functions);
            assert_eq!(share(Role::Client, &functions), share_is, "{functions:?}");
        }
        // The reply, of a server and of a driver.
        for (role, functions, share_is) in [
            (Role::Server, "ep_poll do_epoll_wait", Share::Between),
            (
                Role::Server,
                "veth_xmit ip_output tcp_sendmsg",
                Share::Between,
            ),
            (
                Role::Server,
                "tcp_v4_rcv ip_rcv process_backlog __do_softirq tcp_sendmsg",
                Share::Client,
            ),
            (
                Role::Driver,
                "build_skb tun_get_user tun_chr_write_iter",
                Share::Between,
            ),
            (
                Role::Driver,
                "br_handle_frame netif_receive_skb tun_get_user",
                Share::Bridge,
            ),
            (
                Role::Driver,
                "veth_xmit br_forward netif_receive_skb tun_get_user",
                Share::Client,
            ),
            (
                Role::Driver,
                "ip_rcv process_backlog __do_softirq tun_get_user",
                Share::Client,
            ),
            // What ends in a jump is not seen.
            (
                Role::Driver,
                "tcp_ack ip_local_deliver_finish process_backlog tun_get_user",
                Share::Client,
            ),
            (
                Role::Other,
                "ip_rcv process_backlog __do_softirq run_ksoftirqd",
                Share::Rest,
            ),
        ] {
            assert_eq!(share(role, &chain(functions)), share_is, "{functions}");
        }
    }

    #[test]
    fn the_innermost_known_function_is_the_stage() {
        for (functions, stage_is) in [
            (
                "_raw_spin_lock try_to_wake_up sock_def_readable tcp_rcv_established",
                "waking",
            ),
            ("skb_release_data __kfree_skb tcp_ack", "buffers"),
            ("__x86_indirect_thunk_rax tcp_ack", "TCP"),
            (
                "pick_next_task_fair __schedule schedule ep_poll",
                "scheduler",
            ),
            ("ep_send_events ep_poll", "epoll"),
            ("unheard_of", "else"),
        ] {
            assert_eq!(stage(&chain(functions)), stage_is, "{functions}");
        }
    }

    #[test]
    fn own_code_is_found_by_its_mapping() {
        let code = OwnCode::of_maps(
            "55d000000000-55d000001000 r--p 00000000 00:01 12  /tmp/bin/fordway-stackd\n\
             55d000002000-55d000009000 r-xp 00001000 00:01 12  /tmp/bin/fordway-stackd\n\
             7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
             7f0000002000-7f0000003000 r-xp 00000000 00:00 0   [vdso]\n",
        );
        let place = Some(("fordway-stackd", 0x2010));
        assert_eq!(code.find("fordway-stackd", 0x1010), place);
        assert_eq!(code.find("[unknown]", 0x55d0_0000_2010), place);
        assert_eq!(code.find("[unknown]", 0x7f00_0000_0010), None);
        assert_eq!(code.find("libc.so.6", 0x1010), None);
        assert_eq!(code.find("[vdso]", 0x10), Some(("[vdso]", 0x10)));
        assert!(!code.has_library());
        let server = |file| share_of_own(Role::Server, file, &code);
        assert_eq!(server("fordway-bench"), Share::Program);
        assert_eq!(server("libc.so.6"), Share::Program);
        assert_eq!(server(LIBRARY), Share::Between);
    }

    #[test]
    fn functions_belong_to_modules() {
        let name = "_ZN16fordway_netstack3tcp6Socket3tick17h2bec9513f7bfb572E";
        assert_eq!(module("fordway-stackd", name), "fordway_netstack::tcp");
        let name = "_ZN67_$LT$fordway_netstack..ip..Iter$u20$as$u20$core..iter..Iterator$GT$4next17h2bec9513f7bfb572E";
        assert_eq!(module("fordway-stackd", name), "fordway_netstack::ip");
        assert_eq!(module("libc.so.6", "memcpy"), "libc.so.6");
    }
}
