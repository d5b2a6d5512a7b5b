//! Manual pages and completions, made from the command line's definition and from
//! the closed lists of exit statuses and reasons.

use crate::cli::Cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use crate::show;
use clap::CommandFactory;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use fordway_abi::env as names;
use fordway_abi::reason::Reason;
use std::fs;
use std::path::Path;

/// `fordway completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fordway", &mut script);
    show::print(&String::from_utf8_lossy(&script))
}

/// `fordway man DIR`: a page for the command and one for each subcommand.
pub fn pages(dir: &Path) -> Outcome {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        // A page for each way to ask for help would say nothing.
        let command = Cli::command().disable_help_subcommand(true);
        clap_mangen::generate_to(command, dir)?;
        let pages = [
            ("fordway.1", overview()),
            ("fordway-run.1", launcher()),
            ("fordway-ss.1", columns()),
        ];
        for (page, sections) in pages {
            let mut text = fs::read(dir.join(page))?;
            sections.to_writer(&mut text)?;
            fs::write(dir.join(page), text)?;
        }
        Ok(())
    };
    write().map_err(|error| Failure::internal(format!("{}: {error}", dir.display())))?;
    Ok(Exit::Done)
}

fn overview() -> Roff {
    let mut page = Roff::new();
    list(
        &mut page,
        "EXIT STATUS",
        Exit::ALL
            .iter()
            .map(|exit| ((*exit as u8).to_string(), exit.text().to_owned())),
    );
    let text = "Every connection that is not on the fast path has one of these words in the REASON column of fordway ss:";
    page.control("SH", ["REASONS"]).text([roman(text)]);
    items(
        &mut page,
        Reason::ALL
            .iter()
            .map(|reason| (reason.word().to_owned(), reason.text().to_owned())),
    );
    list(&mut page, "CONFIGURATION", CONFIGURATION.map(owned));
    list(
        &mut page,
        "ENVIRONMENT",
        [
            (
                places::SHIM_VARIABLE,
                "the file of the shim, looked for before any other place",
            ),
            (
                names::SOCKET,
                "set by fordway run and fordway env: the broker's control socket",
            ),
            (
                names::PATH,
                "set by fordway run and fordway env: auto, kernel or fast",
            ),
            (
                names::OFFER_AFTER,
                "operations on a connection before it is offered the fast path (default 4)",
            ),
            (
                names::SPIN_US,
                "longest spin before a sleep, in microseconds (default 20; 0: never)",
            ),
        ]
        .map(owned),
    );
    list(&mut page, "FILES", [
        ("/etc/fordway/fordway.toml", "the configuration, if it exists"),
        ("/run/fordway", "root's runtime directory: sockets, the domains' namespaces (netns/NAME) and hosts files (hosts/NAME; control/hosts for containers)"),
        ("/etc/hosts", "with up --uplink: the domains' names, between two marks that name the runtime directory"),
        ("$XDG_RUNTIME_DIR/fordway", "an ordinary user's runtime directory; without a session /run/user/UID/fordway or /tmp/fordway-UID"),
        ("broker.log, broker.log.1", "in the runtime directory: what a broker started with --detach says, and what came before 1 MB ago"),
        ("/usr/lib/fordway/libfordway.so", "the shim, if it is neither beside fordway nor in ../lib/fordway"),
    ].map(owned));
    page
}

/// The configuration's keys.
const CONFIGURATION: [(&str, &str); 4] = [
    ("network = \"10.77.0.0/24\"", "network of the domains"),
    (
        "runtime_dir = \"/run/fordway\"",
        "as --runtime-dir; the other commands must be given it too",
    ),
    ("uplink = false", "as --uplink"),
    (
        "log = \"info\"",
        "error, warn, info, debug, trace, or a filter such as fordwayd=debug",
    ),
];

fn launcher() -> Roff {
    let mut page = Roff::new();
    let text = "The program's own. Before the program is executed:";
    page.control("SH", ["EXIT STATUS"]).text([roman(text)]);
    let own = [Exit::Launcher, Exit::NotExecutable, Exit::NoProgram];
    items(
        &mut page,
        own.map(|exit| ((exit as u8).to_string(), exit.text().to_owned())),
    );
    page
}

/// The columns of `fordway ss`.
const COLUMNS: [(&str, &str); 7] = [
    (
        "CONN",
        "the connection's number, if it has or had rings; both of its ends have it, and fordway downgrade takes it",
    ),
    (
        "LOCAL",
        "address and port of this end; a domain's name stands for the address that is its own",
    ),
    ("REMOTE", "the same of the far end"),
    (
        "PATH",
        "fast: bytes go through rings; kernel: through the kernel's TCP",
    ),
    ("REASON", "why kernel: a word of those in fordway(1)"),
    (
        "RINGS",
        "bytes that this end has sent and received through rings; with -w, in a second",
    ),
    ("KERNEL", "the same through the kernel"),
];

fn columns() -> Roff {
    let mut page = Roff::new();
    list(&mut page, "COLUMNS", COLUMNS.map(owned));
    page
}

fn list(page: &mut Roff, title: &str, entries: impl IntoIterator<Item = (String, String)>) {
    page.control("SH", [title]);
    items(page, entries);
}

fn items(page: &mut Roff, entries: impl IntoIterator<Item = (String, String)>) {
    for (name, text) in entries {
        let term: Vec<Inline> = vec![bold(name)];
        page.control("TP", []).text(term).text([roman(text)]);
    }
}

fn owned((name, text): (&str, &str)) -> (String, String) {
    (name.to_owned(), text.to_owned())
}
