//! What the manual says of each command beside its definition: one table.

use crate::exit::Exit;

/// A term and what it means.
pub type Term = (&'static str, &'static str);

/// What stands on the page of a command.
#[derive(Debug)]
pub struct Page {
    /// Its name behind `fordway`; empty for fordway(1).
    pub command: &'static str,
    /// Command lines, each with what it does. A test parses them.
    pub examples: &'static [Term],
    /// The columns of what it prints.
    pub columns: &'static [Term],
    /// Its exit statuses beside those that every command has.
    pub exits: &'static [Exit],
    /// Pages to see beside those of its neighbours.
    pub see: &'static [&'static str],
}

const NO_BROKER: Exit = Exit::NoBroker;
const PRIVILEGE: Exit = Exit::Privilege;

/// Every page.
pub const PAGES: &[Page] = &[
    Page {
        command: "",
        examples: &[
            ("fordway up --detach", "starts the broker"),
            (
                "fordway run --domain db -- redis-server --port 6379 --bind 0.0.0.0 --protected-mode no",
                "a server in a domain",
            ),
            (
                "fordway run --domain web -- redis-benchmark -h db -t get",
                "a client in another one, which finds the server by its domain's name",
            ),
            (
                "fordway ss",
                "which path each connection takes, and why if it is the kernel's",
            ),
            ("fordway down", "ends the broker, and removes the domains"),
        ],
        columns: &[],
        exits: Exit::ALL,
        see: &["nft(8)", "ip-netns(8)", "ss(8)"],
    },
    Page {
        command: "up",
        examples: &[
            ("fordway up --detach", "starts the broker in the background"),
            (
                "fordway up --check-config --config fordway.toml",
                "says whether a configuration is right",
            ),
            (
                "fordway up --network 10.9.0.0/16 --ring-memory-max 512M",
                "in the foreground, with another network and a limit",
            ),
            (
                "fordway up --detach --uplink",
                "joins the host: domains get out by it, and ports of theirs may be published",
            ),
        ],
        columns: &[],
        exits: &[Exit::Config, PRIVILEGE, Exit::Missing, Exit::Taken],
        see: &["systemd.socket(5)"],
    },
    Page {
        command: "run",
        examples: &[
            (
                "fordway run --domain db --ip 10.77.0.3 -- redis-server --bind 0.0.0.0 --protected-mode no",
                "makes the domain db, and becomes redis-server in it",
            ),
            (
                "fordway run --domain web -- redis-cli -h db ping",
                "the same in the domain web; the name db leads to the other domain",
            ),
            (
                "fordway run --domain www --publish 8080:80 -- nginx -g 'daemon off;'",
                "port 8080 of the host leads to port 80 of the domain, which needs up --uplink",
            ),
            (
                "fordway run --here --require-fast -- wrk http://127.0.0.1:8080/",
                "in the caller's own namespace; connections without rings fail",
            ),
            (
                "fordway run --domain web --cpu 0-2,5 --path kernel -- bash",
                "without the library, on some CPUs",
            ),
        ],
        columns: &[],
        exits: &[],
        see: &["ld.so(8)", "network_namespaces(7)"],
    },
    Page {
        command: "demo",
        examples: &[
            (
                "fordway demo",
                "both paths measured, a filter that cuts, a broker that is killed; one screen",
            ),
            ("fordway demo --quick", "the same in half a minute"),
            (
                "fordway demo --quick --json",
                "the figures as a document; progress goes to the standard error",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing],
        see: &["redis-server(1)", "nginx(8)", "wrk(1)"],
    },
    Page {
        command: "try",
        examples: &[
            (
                "fordway try --domain web -- redis-benchmark -h db -q",
                "what the benchmark gains by the fast path",
            ),
            (
                "fordway try --json -- curl http://127.0.0.1:8080/",
                "the same of curl, in the caller's namespace, as a document",
            ),
        ],
        columns: &[
            (
                "KERNEL, FORDWAY, RATIO",
                "seconds and seconds of CPU of the first run, of the second run, and one by the other",
            ),
            ("REMOTE", "address and port of the far end"),
            (
                "PATH",
                "fast: bytes went through rings; kernel: through the kernel's TCP",
            ),
            ("REASON", "why kernel: a word of those in fordway(1)"),
            (
                "COUNT",
                "how many connections of the second run were of this kind",
            ),
            (
                "RINGS, KERNEL",
                "bytes that they have sent and received through rings, and through the kernel",
            ),
        ],
        exits: &[
            NO_BROKER,
            Exit::Launcher,
            Exit::NotExecutable,
            Exit::NoProgram,
        ],
        see: &[],
    },
    Page {
        command: "ss",
        examples: &[
            ("fordway ss", "the connections of programs with the library"),
            (
                "fordway ss --domain web --path kernel",
                "those of one domain that are not on the fast path",
            ),
            (
                "fordway ss -w --sort bytes",
                "what moves in a second, the busiest first",
            ),
            ("fordway ss --all --json", "every connection, as a document"),
        ],
        columns: &[
            (
                "CONN",
                "the connection's number, if it has or had rings; both of its ends have it, and fordway downgrade takes it",
            ),
            (
                "LOCAL",
                "address and port of this end; a domain's name stands for the address that is its own; udp: before it says that \
                 this is a UDP socket, with one of its far ends",
            ),
            ("REMOTE", "the same of the far end"),
            (
                "PATH",
                "fast: bytes go through rings; kernel: through the kernel's TCP or UDP; stack: through the domain's own",
            ),
            ("REASON", "why kernel: a word of those in fordway(1)"),
            (
                "RINGS",
                "bytes that this end has sent and received through rings; with -w, in a second",
            ),
            (
                "KERNEL",
                "the same through the kernel, or the domain's own stack",
            ),
        ],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER],
        see: &["ss(8)"],
    },
    Page {
        command: "top",
        examples: &[
            ("fordway top", "a live view; ? tells the keys"),
            (
                "fordway top --domain db --domain web --interval 0.5",
                "the ends in two domains, twice a second",
            ),
            (
                "fordway top --batch -n 10 > top.txt",
                "totals and connections of ten seconds, as text",
            ),
            (
                "fordway top --batch --json --interval 60",
                "a document a minute, until it is interrupted",
            ),
        ],
        columns: &[
            (
                "CONN, LOCAL, REMOTE, PATH, REASON",
                "as fordway ss has them; a narrow terminal shows fewer columns",
            ),
            (
                "PROCESS",
                "PID and name of the program with the library that holds this end",
            ),
            (
                "TX/s, RX/s",
                "bytes in a second that this end sends and receives through rings; - of an end that was not there a look before",
            ),
            (
                "KERN/s",
                "both directions through the kernel, or the domain's own stack",
            ),
            (
                "FILL",
                "bytes in the ring that the far end has not taken yet",
            ),
            ("LOST", "datagrams for which the ring had no room"),
            (
                "FAST, KERN, STACK",
                "of a domain: how many of its ends are on which path",
            ),
            ("MEMORY", "of a domain: ring memory that it has taken"),
        ],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER],
        see: &["top(1)"],
    },
    Page {
        command: "bug-report",
        examples: &[
            (
                "fordway bug-report --list",
                "what would be in the archive, and how long each file is",
            ),
            (
                "fordway bug-report --out /tmp/report.tar.gz",
                "the same, and the archive",
            ),
        ],
        columns: &[],
        exits: &[Exit::Missing, Exit::Taken],
        see: &["tar(1)"],
    },
    Page {
        command: "why",
        examples: &[
            ("fordway why 12", "of connection 12, or of the process 12"),
            (
                "fordway why db:6379",
                "of every connection that has an end at port 6379 of the domain db",
            ),
            (
                "fordway why --json 10.77.0.3:6379",
                "the same by address, as a document",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER],
        see: &[],
    },
    Page {
        command: "domain",
        examples: &[
            (
                "fordway domain add db --ip 10.77.0.3",
                "makes a domain before the first program runs in it",
            ),
            ("fordway domain list", "lists them"),
        ],
        columns: &[],
        exits: &[],
        see: &["network_namespaces(7)"],
    },
    Page {
        command: "domain add",
        examples: &[
            (
                "fordway domain add db --ip 10.77.0.3",
                "a domain with this address",
            ),
            (
                "fordway domain add web --json",
                "with the next free one; what was made, as a document",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing, Exit::Taken, NO_BROKER],
        see: &[],
    },
    Page {
        command: "domain attach",
        examples: &[
            (
                "fordway domain attach shop --ip 172.17.0.5 --pid 4711",
                "the container that process 4711 lies in has this address",
            ),
            (
                "fordway domain attach shop --ip 172.17.0.5 --ip6 fd00:17::5 --pid 4711",
                "it has one of each family",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Taken, Exit::NotFound, NO_BROKER],
        see: &["fordway-env(1)"],
    },
    Page {
        command: "domain list",
        examples: &[
            ("fordway domain list", "as a table"),
            ("fordway domain list --json", "as a document"),
        ],
        columns: &[
            (
                "NAME",
                "the name, by which the other domains find this one; host is the broker's own namespace",
            ),
            (
                "ID",
                "the number, which no other domain of this broker gets",
            ),
            (
                "ADDRESS",
                "the address, and the length of its network's prefix",
            ),
            (
                "IPV6",
                "the IPv6 address, which ends in the other one's 32 bits; of a namespace that the broker did not make, \
                 what domain attach was told",
            ),
            (
                "PROCESSES",
                "how many run in it; of a namespace that the broker did not make, those that speak to the broker",
            ),
        ],
        exits: &[PRIVILEGE, NO_BROKER],
        see: &[],
    },
    Page {
        command: "domain show",
        examples: &[
            (
                "fordway domain show db",
                "one domain, with the memory of its rings",
            ),
            ("fordway domain show db --json", "as a document"),
        ],
        columns: &[
            (
                "id, address, IPv6 address, processes",
                "as fordway domain list has them",
            ),
            (
                "netns cookie",
                "by which the kernel knows the namespace (SO_NETNS_COOKIE, socket(7))",
            ),
            (
                "netns file",
                "by which programs can enter it, such as nsenter(1)",
            ),
            (
                "hosts file",
                "what programs in it find as /etc/hosts: one file for all domains, to be read only",
            ),
            (
                "ring memory",
                "what its programs have taken, and the most that they may",
            ),
            (
                "dropped frames",
                "frames that were sent under an address that is not the domain's; root sees them",
            ),
        ],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER],
        see: &[],
    },
    Page {
        command: "domain rm",
        examples: &[
            (
                "fordway domain rm db",
                "removes a domain in which nothing runs",
            ),
            (
                "fordway domain rm web --force",
                "also if programs run in it: they go on without a network",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER, Exit::Busy],
        see: &[],
    },
    Page {
        command: "downgrade",
        examples: &[
            (
                "fordway downgrade 7",
                "moves connection 7 to the kernel path; both ends then have the reason asked",
            ),
            ("fordway downgrade --all", "moves all of them"),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::NotFound, NO_BROKER],
        see: &[],
    },
    Page {
        command: "log",
        examples: &[
            ("fordway log debug", "has the broker say more"),
            ("fordway log", "prints what it logs"),
        ],
        columns: &[],
        exits: &[PRIVILEGE, NO_BROKER],
        see: &["journalctl(1)"],
    },
    Page {
        command: "filter",
        examples: &[
            ("fordway filter load rules.nft", "puts rules in force"),
            (
                "fordway filter list",
                "prints them with what they have counted",
            ),
        ],
        columns: &[],
        exits: &[],
        see: &["nft(8)"],
    },
    Page {
        command: "filter check",
        examples: &[
            (
                "fordway filter check rules.nft",
                "says what is wrong with a file, and nothing if it is right",
            ),
            (
                "fordway filter check --list -I /etc/nftables rules.nft",
                "prints what nft makes of it",
            ),
        ],
        columns: &[],
        exits: &[Exit::Missing, Exit::NotFound, Exit::Rules],
        see: &["nft(8)"],
    },
    Page {
        command: "filter load",
        examples: &[
            (
                "fordway filter load rules.nft",
                "in place of all rules before",
            ),
            (
                "fordway filter load --add ban.nft",
                "commands on the rules in force",
            ),
            ("fordway filter load /dev/null", "no rules any more"),
        ],
        columns: &[
            ("epoch", "how often rules have changed"),
            ("stay", "connections that keep their rings"),
            (
                "go to the kernel path",
                "those of which a rule needs each packet",
            ),
            ("are cut", "those that a rule refuses"),
            ("get rings", "those that earlier rules had held back"),
        ],
        exits: &[
            PRIVILEGE,
            Exit::Missing,
            Exit::NotFound,
            NO_BROKER,
            Exit::Rules,
        ],
        see: &["nft(8)"],
    },
    Page {
        command: "filter compile",
        examples: &[(
            "fordway filter compile rules.nft -o rules.bin",
            "rules for a unikernel",
        )],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing, Exit::NotFound, Exit::Rules],
        see: &["nft(8)"],
    },
    Page {
        command: "filter list",
        examples: &[
            (
                "fordway filter list",
                "the rules; on a terminal, long ones go on behind a backslash, as nft reads them",
            ),
            ("fordway filter list --json", "as libnftables writes them"),
        ],
        columns: &[(
            "counter packets, bytes",
            "what a rule has counted on both paths; bytes in rings count as the packets that would have carried them",
        )],
        exits: &[PRIVILEGE, Exit::Missing, NO_BROKER],
        see: &["nft(8)", "libnftables-json(5)"],
    },
    Page {
        command: "filter monitor",
        examples: &[
            (
                "fordway filter monitor",
                "each change: a comment that counts, then lines that went (-) and came (+)",
            ),
            ("fordway filter monitor --json", "a document for each"),
        ],
        columns: &[],
        exits: &[PRIVILEGE, NO_BROKER],
        see: &["nft(8)"],
    },
    Page {
        command: "filter trace",
        examples: &[
            (
                "fordway filter trace --from web --to db:6379",
                "what the rules in force say of such a connection",
            ),
            (
                "fordway filter trace --rules rules.nft --from 10.77.0.4 --to 10.77.0.3:6379",
                "what those of a file would say",
            ),
            (
                "fordway filter trace --udp --from web --to db:53",
                "what they say of datagrams, the first of which web sends",
            ),
            (
                "fordway filter trace capture.pcap",
                "what they say of captured packets",
            ),
        ],
        columns: &[
            (
                "first column",
                "the hook of nf_tables at which the packet is: ingress, prerouting, input, forward, output, postrouting",
            ),
            (
                "second column",
                "what the rule did, such as accept, drop, jump, or that the kernel alone can say",
            ),
            (
                "third column",
                "table, chain and text of the rule, or its chain's policy",
            ),
            (
                "=>",
                "what comes of the packet or the connection, and by which rule",
            ),
        ],
        exits: &[
            PRIVILEGE,
            Exit::Missing,
            Exit::NotFound,
            NO_BROKER,
            Exit::Rules,
        ],
        see: &["nft(8)", "pcap(3PCAP)"],
    },
    Page {
        command: "guests",
        examples: &[
            (
                "fordway guests meet web=10.0.0.2 db=10.0.0.3",
                "the two may have channels to each other",
            ),
            ("fordway guests list", "says who may meet whom"),
        ],
        columns: &[],
        exits: &[],
        see: &["xl(1)"],
    },
    Page {
        command: "guests meet",
        examples: &[
            (
                "fordway guests meet web=10.0.0.2 db=10.0.0.3",
                "the two may have channels to each other",
            ),
            (
                "fordway guests meet db=10.0.0.3 log=10.0.0.9",
                "db may meet log as well, and web not",
            ),
            (
                "fordway guests meet web=10.0.0.2 db=10.0.0.3,10.0.0.16/28",
                "programs in db's containers, too, whose addresses are of that network",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing, Exit::Taken, Exit::NotFound],
        see: &["xl(1)"],
    },
    Page {
        command: "guests part",
        examples: &[(
            "fordway guests part log",
            "log meets nobody any more; the others go on",
        )],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing, Exit::NotFound],
        see: &["xl(1)"],
    },
    Page {
        command: "guests list",
        examples: &[("fordway guests list", "each guest of this machine")],
        columns: &[
            ("NAME, ID", "as xl list has them"),
            (
                "ADDRESS",
                "the addresses that the guest was told are its own",
            ),
            (
                "MAY MEET",
                "the guests that it may have channels to; a number in parentheses is left of one that has ended, \
                 and goes at the next change",
            ),
        ],
        exits: &[PRIVILEGE, Exit::Missing],
        see: &["xl(1)"],
    },
    Page {
        command: "doctor",
        examples: &[
            ("fordway doctor", "each point, and what to do"),
            ("fordway doctor --json", "as a document"),
        ],
        columns: &[
            (
                "first column",
                "ok; warn: one can do without; fail: the fast path does not work, or for root domains do not",
            ),
            ("second column", "what was tried"),
            ("third column", "what was found, and what to do"),
        ],
        exits: &[Exit::Unhealthy],
        see: &[],
    },
    Page {
        command: "env",
        examples: &[
            (
                "fordway env",
                "variables, as an env-file of docker and podman, and mounts in its comments",
            ),
            ("fordway env --json", "as a document"),
        ],
        columns: &[],
        exits: &[Exit::Missing],
        see: &["fordway-domain-attach(1)", "ld.so(8)"],
    },
    Page {
        command: "cdi",
        examples: &[
            (
                "fordway cdi install",
                "podman run --device fordway.dev/net=on ... has the library from then on",
            ),
            ("fordway cdi show", "what that device stands for"),
        ],
        columns: &[],
        exits: &[],
        see: &["fordway-env(1)", "podman-run(1)", "docker-run(1)"],
    },
    Page {
        command: "cdi install",
        examples: &[
            ("fordway cdi install", "writes /etc/cdi/fordway.json"),
            (
                "fordway cdi install --dir /var/run/cdi",
                "the same until the machine is started again",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, Exit::Missing, Exit::NotFound],
        see: &["fordway-domain-attach(1)"],
    },
    Page {
        command: "cdi remove",
        examples: &[("fordway cdi remove", "removes /etc/cdi/fordway.json")],
        columns: &[],
        exits: &[PRIVILEGE, Exit::NotFound],
        see: &[],
    },
    Page {
        command: "cdi show",
        examples: &[("fordway cdi show", "the file, on the standard output")],
        columns: &[],
        exits: &[Exit::Missing],
        see: &[],
    },
    Page {
        command: "watch",
        examples: &[
            (
                "fordway watch --podman",
                "says which containers are attached and detached",
            ),
            (
                "fordway watch --docker --socket /run/user/1000/docker.sock",
                "of an engine elsewhere",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE],
        see: &[
            "fordway-cdi(1)",
            "fordway-domain-attach(1)",
            "podman-system-service(1)",
        ],
    },
    Page {
        command: "serve",
        examples: &[
            (
                "fordway serve",
                "http://127.0.0.1:9477/metrics, for Prometheus on this host",
            ),
            (
                "fordway serve --metrics 192.0.2.1:9477",
                "for one elsewhere: whoever reaches the port reads the domains' names and counts",
            ),
        ],
        columns: &[],
        exits: &[Exit::Config, PRIVILEGE, Exit::Taken, NO_BROKER],
        see: &["prometheus(1)"],
    },
    Page {
        command: "down",
        examples: &[
            (
                "fordway down",
                "ends the broker and removes its domains; programs in them go on without a network",
            ),
            (
                "fordway down --keep-domains",
                "domains, rings and programs stay for the next broker",
            ),
        ],
        columns: &[],
        exits: &[PRIVILEGE, NO_BROKER],
        see: &[],
    },
    Page {
        command: "completions",
        examples: &[
            (
                "fordway completions bash > /etc/bash_completion.d/fordway",
                "for every user of bash",
            ),
            (
                "fordway completions zsh > /usr/local/share/zsh/site-functions/_fordway",
                "of zsh",
            ),
            (
                "fordway completions fish > /etc/fish/completions/fordway.fish",
                "of fish",
            ),
        ],
        columns: &[],
        exits: &[],
        see: &["bash(1)", "zsh(1)", "fish(1)"],
    },
    Page {
        command: "man",
        examples: &[(
            "fordway man /usr/local/share/man/man1",
            "installs the pages",
        )],
        columns: &[],
        exits: &[PRIVILEGE],
        see: &["man(1)"],
    },
];

/// The configuration's keys.
pub const CONFIGURATION: [Term; 8] = [
    ("network = \"10.77.0.0/24\"", "network of the domains"),
    (
        "network6 = \"fdbb:bad8:6eca::/64\"",
        "as --network6: IPv6 network of the domains, or none",
    ),
    (
        "runtime_dir = \"/run/fordway\"",
        "as --runtime-dir; the other commands read it here, too",
    ),
    ("uplink = false", "as --uplink"),
    ("vsock = false", "as --vsock"),
    (
        "ring_memory_max = \"512M\"",
        "as --ring-memory-max: most ring memory of one domain; half of the machine's memory otherwise",
    ),
    (
        "log = \"info\"",
        "error, warn, info, debug, trace, or a filter such as fordwayd=debug",
    ),
    (
        "metrics = { listen = \"127.0.0.1:9477\" }",
        "as serve --metrics; if the section is there, fordway up starts fordway serve, and as a service fordway-metrics.service does",
    ),
];

/// Variables that are read, or set for programs.
pub const ENVIRONMENT: [Term; 8] = [
    (
        crate::places::SHIM_VARIABLE,
        "the file of the library, looked for before any other place",
    ),
    ("NO_COLOR", "set to anything: no colours in fordway top"),
    (
        "XDG_RUNTIME_DIR",
        "where the runtime directory of an ordinary user lies",
    ),
    (
        fordway_abi::env::SOCKET,
        "set by fordway run and fordway env: the broker's control socket",
    ),
    (
        fordway_abi::env::PATH,
        "set by fordway run and fordway env: auto, kernel or fast",
    ),
    (
        fordway_abi::env::OFFER_AFTER,
        "operations on a connection before it is offered the fast path (default 4)",
    ),
    (
        fordway_abi::env::SPIN_US,
        "longest spin before a sleep, in microseconds (default 20; 0: never)",
    ),
    (
        fordway_abi::env::DATAGRAMS,
        "0: datagrams of UDP sockets stay with the kernel, as with run --no-datagrams",
    ),
];

/// Where things lie.
pub const FILES: [Term; 6] = [
    (
        "/etc/fordway/fordway.toml",
        "the configuration, if it exists",
    ),
    (
        "/run/fordway",
        "root's runtime directory: sockets, the domains' namespaces (netns/NAME) and hosts file \
         (hosts/.domains; control/hosts for containers)",
    ),
    (
        "/etc/hosts",
        "with up --uplink: the domains' names, between two marks that name the runtime directory",
    ),
    (
        "$XDG_RUNTIME_DIR/fordway",
        "an ordinary user's runtime directory; without a session /run/user/UID/fordway or /tmp/fordway-UID. \
         fordway ss, top, why, serve, domain list and domain show ask root's broker if none answers there, and root's \
         lets them: by read.sock it answers members of the group fordway",
    ),
    (
        "broker.log, broker.log.1",
        "in the runtime directory: what a broker started with --detach says, and what came before 1 MB ago",
    ),
    (
        "/usr/lib/fordway/libfordway.so",
        "the library, if it is neither beside fordway nor in ../lib/fordway",
    ),
];
