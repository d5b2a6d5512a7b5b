//! The command line's definition: the help, the manual pages and the completions
//! are all made from it.

use crate::cdi::DEFAULT_DIR;
use crate::demo::options::DemoArgs;
use crate::guests::Party;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use fordway_abi::reason::Reason;
use fordway_platform::fabric::Publication;
use fordway_platform::launch::CpuList;
use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Lets unmodified programs in isolated domains talk over shared memory.
///
/// Programs keep their TCP sockets; between two programs that were started by
/// `fordway run`, the bytes move to rings in shared memory, and everything that
/// cannot goes on over the kernel's TCP.
#[derive(Debug, Parser)]
#[command(name = "fordway", version, propagate_version = true)]
pub struct Cli {
    /// Where the broker's sockets, namespaces and hosts files lie
    /// [default: /run/fordway; for ordinary users $XDG_RUNTIME_DIR/fordway, or below
    /// /run/user or /tmp without a session]
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub runtime_dir: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the broker, in the foreground unless --detach is given
    Up(Up),
    /// Start a program in a domain (or here) with the fast path
    Run(Run),
    /// Run a program twice, over the kernel path and with the fast path, and say what it gained
    ///
    /// Its output comes twice, then a table: time, CPU, and which of its connections were
    /// fast, which not, and why. The programs at the other ends have to be started by
    /// fordway run before.
    Try(Try),
    /// Show what Fordway does, on real programs (root)
    ///
    /// A broker of its own; redis-server and nginx, each in a domain of its own, over both
    /// paths in turn; the packet filter cuts a live connection and lets new ones pass again;
    /// the broker is killed while a client goes on. Everything is removed at the end, also
    /// if the demo is interrupted (exit status 130). It installs nothing: a program that is
    /// missing is named (exit status 5).
    Demo(DemoArgs),
    /// List connections: which path each takes, and why if it is the kernel's
    Ss(Ss),
    /// Show domains and connections live: what moves by which path
    ///
    /// Keys: arrows, PgUp, PgDn, Home, End; Enter one connection in detail; / filter by text; s, <, > column
    /// to sort by, r the other way round; d, c, Tab domains or connections; a all ends; Space pause; ? help; q leave.
    Top(Top),
    /// Say why connections are not on the fast path, and what would change that
    ///
    /// Of a connection by its number, of all of a process, or of all that have one end there. Nothing
    /// is asked of the programs, and nothing changes.
    Why(Why),
    /// Make, list and remove domains
    #[command(subcommand)]
    Domain(Domain),
    /// Move connections back to the kernel path
    Downgrade(Downgrade),
    /// Put rules of the packet filter in force, in nftables' language, and look at them
    #[command(subcommand)]
    Filter(FilterCommand),
    /// Say in dom0 which guests of Xen may have channels to each other
    ///
    /// Each guest learns by XenStore its own address and those of whom it may meet, and has
    /// to have a broker. dom0 alone can write that, and no guest reads what another one is
    /// told. It is for the guest's life: one that was started again has to be named again.
    #[command(subcommand)]
    Guests(Guests),
    /// Check what Fordway needs on this machine, and say what to do
    Doctor(Json),
    /// Write one archive with what a report of a fault needs
    ///
    /// Versions, doctor, the connections and domains, the configuration and the logs. The files are listed
    /// before the archive is written. No payload is in them, and no secret of the configuration; addresses
    /// and names of domains are. Whatever hangs or fails is there with what it said.
    BugReport(BugReport),
    /// Print what a container needs for joining: variables and mounts
    ///
    /// A container that something else starts joins in three steps: mount what the
    /// comment lines name, at the same paths; start its program with the variables (the
    /// text is an --env-file for docker and podman); then tell the broker whose address
    /// the container's namespace has, with: fordway domain attach NAME --ip ADDRESS
    /// --pid PID. Whoever made the address must also keep others from using it: only
    /// domains that Fordway makes have its anti-spoofing.
    Env(Json),
    /// Make joining a device of container engines: podman run --device fordway.dev/net=on
    ///
    /// The device stands for the variables and mounts of fordway env, but for the optional
    /// ones. Podman 4.1 and Docker 28.2 and later read it (Container Device Interface).
    #[command(subcommand)]
    Cdi(Cdi),
    /// Register an engine's containers as domains while they run, until interrupted
    ///
    /// A container takes part if it has the device of fordway cdi, or the mounts of fordway
    /// env. Its name becomes the domain's, in small letters and with hyphens. The engine
    /// says which address is whose, and is believed as domain attach is, if the container has
    /// that address. Engine and broker may be started again meanwhile.
    Watch(Watch),
    /// Serve what the broker knows as metrics, for Prometheus, until interrupted
    ///
    /// Of GET /metrics, in Prometheus' text form. The broker is asked once a second at most, whoever
    /// asks here, by a socket on which nothing can be changed. Started by root, it becomes a user who owns
    /// nothing, and leaves the file system. fordway up starts it if the configuration has [metrics].
    Serve(Serve),
    /// Print what the broker logs, or change it until the broker ends
    ///
    /// What is audited is logged at every level: who changed rules or domains, which connections were cut
    /// (see docs/operations.md). The broker's user and root are asked for this, outside of domains.
    Log {
        /// error, warn, info, debug or trace, or several such as warn,fordwayd::filter=debug
        level: Option<String>,
    },
    /// End the broker and remove its domains
    Down(Down),
    /// Print a completion script
    Completions {
        /// For which shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// What may stand in place of the last word; for the scripts of `completions`
    #[command(hide = true)]
    Complete {
        /// The words behind `fordway`, up to the one with the cursor
        #[arg(last = true)]
        words: Vec<OsString>,
    },
    /// Write the manual pages into a directory
    Man {
        /// Where to; made if it does not exist
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum FilterCommand {
    /// Have nft read a file of rules (its text or libnftables' JSON) and say what is wrong with it
    Check {
        /// The file
        file: PathBuf,
        /// Where include looks for names without ./ or / [default: /etc]
        #[arg(short = 'I', long = "include", value_name = "DIR", value_hint = ValueHint::DirPath)]
        include: Vec<PathBuf>,
        /// Print the rules as nft lists them
        #[arg(long)]
        list: bool,
        /// Print the rules as libnftables' JSON
        #[arg(long)]
        json: bool,
    },
    /// Put a file of rules in force in place of those before, in every enforcer or in none
    ///
    /// The kernel has them first (real nft, in the network namespace that joins the
    /// domains), then the broker, which looks at every live connection again: one that a
    /// rule refuses is cut, one of which a rule needs each packet goes to the kernel path.
    Load {
        /// The file
        file: PathBuf,
        /// Carry the file's commands out on the rules in force, as nft -f does
        #[arg(long)]
        add: bool,
        /// Where include looks for names without ./ or / [default: /etc]
        #[arg(short = 'I', long = "include", value_name = "DIR", value_hint = ValueHint::DirPath)]
        include: Vec<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
    /// Write a file of rules for who has no kernel to ask: a unikernel, a stack of its own
    ///
    /// nft reads the text here, with eth0 as a guest's interface; what comes out is what
    /// nf_tables would carry out.
    Compile {
        /// The file
        file: PathBuf,
        /// Where include looks for names without ./ or / [default: /etc]
        #[arg(short = 'I', long = "include", value_name = "DIR", value_hint = ValueHint::DirPath)]
        include: Vec<PathBuf>,
        /// Where the compiled rules go
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Print the rules in force, with what they have counted on both paths
    List {
        /// Print libnftables' JSON
        #[arg(long)]
        json: bool,
    },
    /// Print each change of the rules as it comes, until interrupted
    Monitor(Json),
    /// Say which rules in force decide about a connection, or about captured packets
    ///
    /// The rules are asked, nothing is sent and nothing counted. For a connection (--from,
    /// --to) the answer is the one by which the broker gives it rings or not. A capture
    /// (pcap or pcapng, Ethernet) is taken packet by packet through the hooks between two
    /// domains, with connection tracking from its first packet on.
    #[command(group = clap::ArgGroup::new("what").required(true).args(["capture", "to"]))]
    Trace {
        /// A file of captured packets
        capture: Option<PathBuf>,
        /// The connecting end: address or domain, with a port if it matters
        #[arg(long, value_name = "END", requires = "to")]
        from: Option<String>,
        /// The end that is connected to: address or domain, and port
        #[arg(long, value_name = "END:PORT", requires = "from")]
        to: Option<String>,
        /// Datagrams of UDP between the two instead of a TCP connection
        #[arg(long, requires = "from")]
        udp: bool,
        /// Rules to ask instead of those in force (no broker is needed)
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct Json {
    /// Print a JSON document (with a schema version) instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Try {
    /// Run in the domain of this name [default: in the caller's network namespace]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    #[command(flatten)]
    pub json: Json,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Why {
    /// A connection's number, as in fordway ss; a process's PID; or an end: NAME:PORT, ADDRESS:PORT
    #[arg(value_name = "CONN|PID|END")]
    pub what: String,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct BugReport {
    /// The archive, a compressed tar file, which must not be there [default: fordway-report-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// List what would be in it, and write nothing
    #[arg(long)]
    pub list: bool,
}

#[derive(Debug, Args)]
pub struct Ss {
    /// Also ends that no program with the library holds
    #[arg(long)]
    pub all: bool,
    /// Only ends in this domain
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Only ends on this path
    #[arg(long, value_enum)]
    pub path: Option<PathShown>,
    /// Only ends that are on the kernel path for this reason, a word of those in fordway(1)
    #[arg(long, value_name = "WORD", value_parser = reasons(), hide_possible_values = true)]
    pub reason: Option<String>,
    /// What the rows are sorted by
    #[arg(long, value_enum, default_value_t = Sort::Domain)]
    pub sort: Sort,
    /// Show what moves in a second, each second, until interrupted
    #[arg(short = 'w', long, conflicts_with = "json")]
    pub watch: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Top {
    /// How long between two looks, 0.1 to 60 seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Only this domain and the ends in it (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub domain: Vec<String>,
    /// Also ends that no program with the library holds
    #[arg(long)]
    pub all: bool,
    /// Print totals and connections as text after each interval, for pipes and files
    #[arg(long)]
    pub batch: bool,
    /// With --batch: end after so many tables
    #[arg(short = 'n', long, value_name = "COUNT", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// With --batch: print JSON documents (with a schema version) instead, one a line
    #[arg(long, requires = "batch")]
    pub json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=60.0).contains(seconds));
    let seconds = seconds.ok_or("not 0.1 to 60 seconds")?;
    Ok(Duration::from_secs_f64(seconds))
}

fn reasons() -> PossibleValuesParser {
    Reason::ALL.iter().map(|reason| reason.word()).into()
}

/// Shells that are completed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash(1), with bash-completion for the program behind run and try
    Bash,
    /// zsh(1)
    Zsh,
    /// fish(1)
    Fish,
}

/// `ss --path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathShown {
    /// Bytes go through rings
    Fast,
    /// Bytes go through the kernel
    Kernel,
    /// Bytes go through the stack of the domain's own
    Stack,
}

/// `ss --sort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Domain, then addresses
    Domain,
    /// The number of the connection: its ends are neighbours
    Number,
    /// Fast ones first, then by reason
    Path,
    /// What has moved most first
    Bytes,
}

#[derive(Debug, Args)]
pub struct Up {
    /// Go on in the background; returns when the broker answers
    #[arg(long)]
    pub detach: bool,
    /// Configuration in TOML [default: /etc/fordway/fordway.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read the configuration, say whether it is right, and end
    #[arg(long)]
    pub check_config: bool,
    /// Network of the domains [default: 10.77.0.0/24]
    #[arg(long, value_name = "CIDR")]
    pub network: Option<String>,
    /// IPv6 network beside it, or none [default: fdbb:bad8:6eca::/64]
    #[arg(long, value_name = "CIDR")]
    pub network6: Option<String>,
    /// Join the host to the domains' network, as its first address: names of domains on the host,
    /// a way out for the domains (masqueraded), published ports
    #[arg(long)]
    pub uplink: bool,
    /// Give domains a CID too, and the host with an uplink: programs in them reach each other by
    /// sockets of AF_VSOCK
    #[arg(long)]
    pub vsock: bool,
    /// Most ring memory of one domain, such as 512M [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE")]
    pub ring_memory_max: Option<String>,
    /// What is logged: error, warn, info, debug or trace, or several such as warn,fordwayd::filter=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// We are the background process of --detach, and report to this socket
    #[arg(long, hide = true, value_name = "SOCKET")]
    pub detached: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("place").required(true).args(["domain", "here"]))]
pub struct Run {
    /// Run in the domain of this name; it is made if it does not exist (root)
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Address of the domain [default: the next free one]
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "domain",
        conflicts_with = "here"
    )]
    pub ip: Option<Ipv4Addr>,
    /// Have a port of the host lead to one of the domain (may be given several times)
    #[arg(
        long,
        value_name = "[ADDRESS:]PORT:PORT[/udp]",
        requires = "domain",
        conflicts_with = "here"
    )]
    pub publish: Vec<Publication>,
    /// Run in the caller's own network namespace
    #[arg(long)]
    pub here: bool,
    /// Which path the program's connections take
    #[arg(long, value_enum, default_value_t = PathChoice::Auto)]
    pub path: PathChoice,
    /// The same as --path fast: a connection that gets no rings in 2 s fails, and carries nothing before
    #[arg(long, conflicts_with = "path")]
    pub require_fast: bool,
    /// What the domain's own stack is to have [default: tcp,udp,icmp,ipv6]
    #[arg(
        long,
        value_enum,
        value_name = "PROTOCOL,...",
        value_delimiter = ',',
        requires = "domain"
    )]
    pub stack: Vec<StackProtocol>,
    /// With a stack of its own: stack and driver in one process
    #[arg(long, requires = "domain")]
    pub fuse: bool,
    /// Datagrams of its UDP sockets stay with the kernel
    #[arg(long)]
    pub no_datagrams: bool,
    /// CPUs that the program may use, such as 0-2,5; the domain's own stack as well, which its first program has made
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<CpuList>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG")]
    pub command: Vec<OsString>,
}

/// `run --path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathChoice {
    /// Rings where they can be had, else the kernel
    Auto,
    /// The kernel only
    Kernel,
    /// Rings, or the connection fails
    Fast,
    /// By a network stack of the domain's own: a process that serves its sockets in the kernel's place
    Stack,
}

/// `run --stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum StackProtocol {
    /// Streams
    Tcp,
    /// Datagrams
    Udp,
    /// Echo, and errors
    Icmp,
    /// IPv6 beside IPv4
    Ipv6,
}

impl StackProtocol {
    /// As a stack is told.
    pub fn word(self) -> &'static str {
        match self {
            StackProtocol::Tcp => "tcp",
            StackProtocol::Udp => "udp",
            StackProtocol::Icmp => "icmp",
            StackProtocol::Ipv6 => "ipv6",
        }
    }
}

impl PathChoice {
    /// Its value in the environment.
    pub fn word(self) -> &'static str {
        match self {
            PathChoice::Auto => "auto",
            PathChoice::Kernel => "kernel",
            PathChoice::Fast => "fast",
            // What the stack's sockets give, the library may still put rings over.
            PathChoice::Stack => "auto",
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Domain {
    /// Make a domain: a network namespace with an address, joined to the others
    Add {
        /// Host-name syntax, at most 63 bytes
        name: String,
        /// Its address [default: the next free one]
        #[arg(long, value_name = "ADDRESS")]
        ip: Option<Ipv4Addr>,
        /// Have a port of the host lead to one of the domain (may be given several times)
        #[arg(long, value_name = "[ADDRESS:]PORT:PORT[/udp]")]
        publish: Vec<Publication>,
        #[command(flatten)]
        json: Json,
    },
    /// Register a namespace that something else made, such as a container's
    ///
    /// Its connections may then use rings, as far as its programs have the shim (see
    /// fordway env). The broker believes the administrator that this address belongs to
    /// this namespace and to no other.
    Attach {
        /// Host-name syntax, at most 63 bytes
        name: String,
        /// The address that the namespace was given
        #[arg(long, value_name = "ADDRESS")]
        ip: Ipv4Addr,
        /// The IPv6 address that it was given, if any
        #[arg(long, value_name = "ADDRESS")]
        ip6: Option<Ipv6Addr>,
        /// A process in that namespace
        #[arg(long)]
        pid: i32,
        #[command(flatten)]
        json: Json,
    },
    /// List the domains
    List(Json),
    /// Show one domain
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Remove a domain
    Rm {
        /// Its name
        name: String,
        /// Also when programs are still running in it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub enum Cdi {
    /// Write the file that tells engines of the device, in place of the one before
    ///
    /// It holds the runtime directory and the library's place: write it anew when either
    /// has moved.
    Install {
        /// Where engines look for devices; made if it does not exist
        #[arg(long, value_hint = ValueHint::DirPath, default_value = DEFAULT_DIR)]
        dir: PathBuf,
    },
    /// Remove that file
    Remove {
        /// Where it lies
        #[arg(long, value_hint = ValueHint::DirPath, default_value = DEFAULT_DIR)]
        dir: PathBuf,
    },
    /// Print what install would write
    Show,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("engine").required(true).args(["docker", "podman"]))]
pub struct Watch {
    /// Docker, at /run/docker.sock
    #[arg(long)]
    pub docker: bool,
    /// Podman, at /run/podman/podman.sock (podman system service)
    #[arg(long)]
    pub podman: bool,
    /// Another socket of the engine's
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Guests {
    /// Let guests meet, each of them all others, and say which addresses each has
    ///
    /// Whom they might meet before, they still may. New addresses are told to all of them. Behind
    /// its own address come those that the guest routes to its namespaces, one by one or
    /// as networks; an address is one guest's alone.
    Meet {
        /// The guest, by its name in xl list, and its IPv4 addresses, its own first
        #[arg(required = true, num_args = 2.., value_name = "NAME=ADDRESSES")]
        guests: Vec<Party>,
    },
    /// Have guests meet nobody any more
    Part {
        /// The guest, by its name in xl list
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// List the guests, and whom each may meet
    List,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["channel", "all"]))]
pub struct Downgrade {
    /// Its number, from the column CONN of fordway ss
    #[arg(value_name = "CONN")]
    pub channel: Option<u64>,
    /// Every connection
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen; port 0: one that is free [default: 127.0.0.1:9477]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// End at once unless the configuration has [metrics]; the service is started so
    #[arg(long)]
    pub if_configured: bool,
    /// Configuration in TOML [default: /etc/fordway/fordway.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Down {
    /// Leave the domains and the programs in them as they are
    #[arg(long)]
    pub keep_domains: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let line = [
            "fordway",
            "run",
            "--here",
            "redis-server",
            "--port",
            "1",
            "--here",
        ];
        let Command::Run(run) = Cli::try_parse_from(line).expect("parse").command else {
            panic!("not run");
        };
        assert_eq!(run.command, ["redis-server", "--port", "1", "--here"]);
    }
}
