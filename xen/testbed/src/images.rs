//! The images that a run needs, made once and cached by the versions of the packages and
//! by what we make of them.

use crate::cpio::Archive;
use crate::packages::{Apt, Package, unpack};
use crate::{Error, kernel};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// dom0: Xen, its tools, a kernel, and the clients that tests run.
const DOM0_PACKAGES: &[&str] = &[
    "xen-hypervisor-4.17-amd64",
    "linux-image-amd64",
    "xen-utils-4.17",
    "xenstore-utils",
    "apache2-utils",
    "bash",
    "bridge-utils",
    "bsdutils",
    "coreutils",
    "curl",
    // Gives leases and answers for names.
    "dnsmasq-base",
    "ethtool",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "httperf",
    "iperf3",
    "iproute2",
    "iputils-arping",
    "iputils-ping",
    "kmod",
    "mount",
    "procps",
    "redis-tools",
    "sed",
    "siege",
    "tar",
    "tcpdump",
    "util-linux",
    "wget",
];
/// The Linux guest: what ours is compared with.
const GUEST_PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "apache2-utils",
    "busybox-static",
    "iperf3",
    "iproute2",
    // The fastest small web servers that Debian has, for new and for kept connections
    // (against webfs, h2o, mini-httpd and busybox's).
    "nginx-light",
    "lighttpd",
    "redis-server",
    // What ours is compared with between guests.
    "libxenmisc4.17",
];
/// Linux without Xen: what Fordway needs, and perf(1).
const LINUX_PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "linux-perf",
    "bash",
    "coreutils",
    "grep",
    "iproute2",
    "kmod",
    "mount",
    "nftables",
    "procps",
    "python3",
    "util-linux",
];
/// What they are wanted for. An image without one of these is not kept.
const GUEST_PROGRAMS: &[&str] = &[
    "usr/bin/ab",
    "usr/bin/busybox",
    "usr/bin/ip",
    "usr/bin/iperf3",
    "usr/bin/redis-server",
    "usr/sbin/lighttpd",
    "usr/sbin/nginx",
];
/// Dependencies that only maintainer scripts or a booting host need.
const LEFT_OUT: &[&str] = &[
    "adduser",
    "apparmor",
    "debconf",
    "dpkg",
    "firmware-",
    "init-system-helpers",
    "initramfs-tools",
    "klibc-utils",
    "libklibc",
    "libperl",
    "linux-base",
    "linux-image-",
    "passwd",
    "perl",
    "systemd",
    "ucf",
    "udev",
    "xen-hypervisor-",
];
/// perf(1) is linked to this one, which is left out elsewhere; and files of it that perf does not read.
const PERL: &str = "libperl";
const PERL_PATHS: &[&str] = &["usr/lib/x86_64-linux-gnu/perl", "usr/share/perl"];
/// Files that nothing in dom0 reads.
const PATHS_LEFT_OUT: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/perl5",
    "usr/share/python3",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/distutils",
    "usr/lib/python3.11/sqlite3",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/locale",
    "usr/lib/xen-4.17/boot",
    "boot",
];
const XEN_PATH: &str = "usr/lib/xen-4.17";
const DOM0_MODULES: &[&str] = &[
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xen-privcmd",
    "xenfs",
    "xen-netback",
    "bridge",
    "af_packet",
    "veth",
    "sch_netem",
    "sch_tbf",
];
const GUEST_MODULES: &[&str] = &["xen-netfront", "af_packet"];
/// What programs of a guest need for grants and event channels.
const USER_MODULES: &[&str] = &["xen-evtchn", "xen-gntdev", "xen-gntalloc"];
/// What programs of ours are linked to, and libxenvchan with what that is, from Debian's tree.
const USER_LIBRARIES: &[&str] = &[
    "usr/lib64/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "usr/lib/x86_64-linux-gnu/libxenevtchn.so.1",
    "usr/lib/x86_64-linux-gnu/libxengnttab.so.1",
    "usr/lib/x86_64-linux-gnu/libxenstore.so.4",
    "usr/lib/x86_64-linux-gnu/libxentoolcore.so.1",
    "usr/lib/x86_64-linux-gnu/libxentoollog.so.1",
    "usr/lib/x86_64-linux-gnu/libxenvchan.so.4.17",
];
/// What a broker of Fordway asks its guest's kernel by, and what leads into namespaces.
const BROKER_MODULES: &[&str] = &["tcp_diag", "udp_diag", "unix_diag", "veth"];
/// Programs for such a guest, and what they are linked to beside the libraries above.
const PROGRAM_FILES: &[&str] = &[
    "usr/bin/ab",
    "usr/bin/ip",
    "usr/bin/iperf3",
    "usr/bin/redis-benchmark",
    "usr/bin/redis-cli",
    "usr/bin/redis-server",
    "usr/sbin/nginx",
    "usr/lib/x86_64-linux-gnu/libapr-1.so.0",
    "usr/lib/x86_64-linux-gnu/libaprutil-1.so.0",
    "usr/lib/x86_64-linux-gnu/libatomic.so.1",
    "usr/lib/x86_64-linux-gnu/libbpf.so.1",
    "usr/lib/x86_64-linux-gnu/libbsd.so.0",
    "usr/lib/x86_64-linux-gnu/libcap.so.2",
    "usr/lib/x86_64-linux-gnu/libcrypt.so.1",
    "usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "usr/lib/x86_64-linux-gnu/libelf.so.1",
    "usr/lib/x86_64-linux-gnu/libexpat.so.1",
    "usr/lib/x86_64-linux-gnu/libgcrypt.so.20",
    "usr/lib/x86_64-linux-gnu/libgpg-error.so.0",
    "usr/lib/x86_64-linux-gnu/libiperf.so.0",
    "usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
    "usr/lib/x86_64-linux-gnu/liblz4.so.1",
    "usr/lib/x86_64-linux-gnu/liblzf.so.1",
    "usr/lib/x86_64-linux-gnu/liblzma.so.5",
    "usr/lib/x86_64-linux-gnu/libm.so.6",
    "usr/lib/x86_64-linux-gnu/libmd.so.0",
    "usr/lib/x86_64-linux-gnu/libmnl.so.0",
    "usr/lib/x86_64-linux-gnu/libpcre2-8.so.0",
    "usr/lib/x86_64-linux-gnu/libsctp.so.1",
    "usr/lib/x86_64-linux-gnu/libssl.so.3",
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "usr/lib/x86_64-linux-gnu/libsystemd.so.0",
    "usr/lib/x86_64-linux-gnu/libuuid.so.1",
    "usr/lib/x86_64-linux-gnu/libz.so.1",
    "usr/lib/x86_64-linux-gnu/libzstd.so.1",
];
const LINUX_MODULES: &[&str] = &[
    "af_packet",
    "bridge",
    "inet_diag",
    "nf_conntrack",
    "nf_conntrack_bridge",
    "nf_conntrack_netlink",
    "nf_tables",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_meta_bridge",
    "nft_nat",
    "nft_objref",
    "nft_redir",
    "nft_reject_bridge",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "tcp_diag",
    "tun",
    "udp_diag",
    "unix_diag",
    "veth",
];

const GUEST_INIT: &str = include_str!("../assets/guest-init.sh");
const GUEST_NGINX: &str = include_str!("../assets/guest-nginx.conf");
const GUEST_LIGHTTPD: &str = include_str!("../assets/guest-lighttpd.conf");
const SIEGE: &str = include_str!("../assets/siege.conf");
/// Raised when the same inputs are made into something else.
const RECIPE: u32 = 2;

/// A file for the test bed.
#[derive(Clone, Debug)]
pub enum Source {
    /// Its content.
    Bytes(Vec<u8>),
    /// Where it lies.
    Path(PathBuf),
}

impl Source {
    pub(crate) fn bytes(&self) -> io::Result<Vec<u8>> {
        match self {
            Source::Bytes(bytes) => Ok(bytes.clone()),
            Source::Path(path) => std::fs::read(path).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            }),
        }
    }
}

/// The machine that jobs run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// Xen, with a Linux dom0.
    Xen,
    /// Linux alone, with perf(1).
    Linux,
}

/// A directory of images, complete.
#[derive(Clone, Debug)]
pub struct Images {
    directory: PathBuf,
    bed: Bed,
}

impl Images {
    /// Xen, as QEMU's -kernel takes it.
    pub const XEN: &str = "xen";
    /// dom0's kernel.
    pub const DOM0_KERNEL: &str = "dom0-kernel";
    /// dom0's initramfs.
    pub const DOM0: &str = "dom0.cpio";
    /// The Linux guest's kernel, its smallest initramfs, the one with servers, what goes behind either
    /// for programs of ours that use grants and event channels, and behind that for a broker and programs under it.
    pub const LINUX: [&str; 5] = [
        "kernel",
        "small.cpio",
        "servers.cpio",
        "user.cpio",
        "programs.cpio",
    ];

    /// The kernel of Linux alone, as QEMU's -kernel takes it, and its initramfs.
    pub const ALONE: [&str; 2] = ["alone-kernel", "alone.cpio"];

    /// One of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Which machine they are of.
    pub fn bed(&self) -> Bed {
        self.bed
    }

    /// The initramfs of the system in which jobs run.
    pub(crate) fn system(&self) -> PathBuf {
        self.path(match self.bed {
            Bed::Xen => Images::DOM0,
            Bed::Linux => Images::ALONE[1],
        })
    }

    /// The images, from the cache or made now; `say` is told what takes time.
    pub fn prepare(say: &dyn Fn(&str)) -> Result<Images, Error> {
        Images::of(Bed::Xen, &[DOM0_PACKAGES, GUEST_PACKAGES], say)
    }

    /// The same of Linux alone.
    pub fn prepare_linux(say: &dyn Fn(&str)) -> Result<Images, Error> {
        Images::of(Bed::Linux, &[LINUX_PACKAGES], say)
    }

    fn of(bed: Bed, lists: &[&[&str]], say: &dyn Fn(&str)) -> Result<Images, Error> {
        let cache = cache();
        std::fs::create_dir_all(&cache).map_err(|error| Error::file(&cache, error))?;
        // One that makes them at a time; the others find them made.
        let lock = cache.join("lock");
        let lock = std::fs::File::create(&lock).map_err(|error| Error::file(&lock, error))?;
        lock.lock().map_err(|error| Error::file(&cache, error))?;

        let apt = Apt::at(&cache.join("apt"))?;
        let resolved = lists.iter().map(|list| apt.resolve(list));
        let packages = resolved.collect::<Result<Vec<_>, _>>()?;
        let directory = cache.join(format!("images-{:016x}", key(bed, &packages)));
        if directory.is_dir() {
            return Ok(Images { directory, bed });
        }
        say("fetching Debian's packages");
        // One by one: of alternatives, both together might take another.
        lists.iter().try_for_each(|list| apt.fetch(list))?;
        let work = cache.join("work");
        let _ = std::fs::remove_dir_all(&work);
        let images = Images {
            directory: work.join("images"),
            bed,
        };
        std::fs::create_dir_all(&images.directory)
            .map_err(|error| Error::file(&images.directory, error))?;
        match bed {
            Bed::Xen => {
                say("unpacking them and making dom0's image");
                images.make_dom0(&apt, &packages[0], &work.join("dom0"))?;
                say("making the Linux guest's images");
                images.make_guest(&apt, &packages[1], &work.join("guest"))?;
            }
            Bed::Linux => {
                say("unpacking them and making the image");
                images.make_alone(&apt, &packages[0], &work.join("alone"))?;
            }
        }
        std::fs::rename(&images.directory, &directory)
            .map_err(|error| Error::file(&directory, error))?;
        let _ = std::fs::remove_dir_all(&work);
        Ok(Images { directory, bed })
    }

    fn make_dom0(&self, apt: &Apt, packages: &[Package], tree: &Path) -> Result<(), Error> {
        merged_tree(tree)?;
        for package in packages {
            if !left_out(package) {
                unpack(&apt.archive(package), tree)?;
            }
        }
        let kernel_tree = tree.with_extension("kernel");
        let (packed, modules) = unpack_kernel(apt, packages, &kernel_tree, DOM0_MODULES)?;
        // Xen's builder of dom0 wants the ELF image.
        self.write(Images::DOM0_KERNEL, &kernel::vmlinux(&packed)?)?;
        let xen_tree = tree.with_extension("xen");
        make_directory(&xen_tree)?;
        for package in packages {
            if package.name.starts_with("xen-hypervisor-") {
                unpack(&apt.archive(package), &xen_tree)?;
            }
        }
        let packed = only_file(&xen_tree.join("boot"), "xen-", ".gz")?;
        let xen = std::fs::read(&packed).map_err(|error| Error::file(&packed, error))?;
        let xen = kernel::unpack("gzip", "gzip", &xen)?;
        self.write(Images::XEN, &xen)?;

        self.archive(Images::DOM0, |archive| {
            add_system(archive, tree, &modules, &[])?;
            archive.directory("root/.siege")?;
            archive.file("root/.siege/siege.conf", 0o644, SIEGE.as_bytes())
        })
    }

    fn make_alone(&self, apt: &Apt, packages: &[Package], tree: &Path) -> Result<(), Error> {
        merged_tree(tree)?;
        for package in packages {
            if !left_out(package) || package.name.starts_with(PERL) {
                unpack(&apt.archive(package), tree)?;
            }
        }
        let kernel_tree = tree.with_extension("kernel");
        let (packed, modules) = unpack_kernel(apt, packages, &kernel_tree, LINUX_MODULES)?;
        let [kernel, system] = Images::ALONE;
        self.write(kernel, &packed)?;
        self.archive(system, |archive| {
            add_system(archive, tree, &modules, PERL_PATHS)
        })
    }

    fn make_guest(&self, apt: &Apt, packages: &[Package], tree: &Path) -> Result<(), Error> {
        merged_tree(tree)?;
        for package in packages {
            if !left_out(package) {
                unpack(&apt.archive(package), tree)?;
            }
        }
        for program in GUEST_PROGRAMS {
            // Links are followed.
            if !tree.join(program).is_file() {
                return Err(Error::Image(format!("the Linux guest has no {program}")));
            }
        }
        let [kernel, small, servers, user, programs] = Images::LINUX;
        let kernel_tree = tree.with_extension("kernel");
        let (packed, modules) = unpack_kernel(apt, packages, &kernel_tree, GUEST_MODULES)?;
        // xl unpacks it.
        self.write(kernel, &packed)?;
        let of_user = kernel::modules(&kernel_tree.join("lib/modules"), USER_MODULES)?;
        self.archive(user, |archive| {
            archive.directory("modules")?;
            // Behind those of the first archive.
            add_modules(archive, &of_user, 50)?;
            for directory in ["usr", "usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu"] {
                archive.directory(directory)?;
            }
            for (link, target) in [("lib", "usr/lib"), ("lib64", "usr/lib64")] {
                archive.link(link, target)?;
            }
            for name in USER_LIBRARIES {
                archive.file(name, 0o755, &std::fs::read(tree.join(name))?)?;
            }
            Ok(())
        })?;
        let of_broker = kernel::modules(&kernel_tree.join("lib/modules"), BROKER_MODULES)?;
        self.archive(programs, |archive| {
            // Behind those of the archive before.
            add_modules(archive, &of_broker, 60)?;
            archive.directory("usr/bin")?;
            archive.directory("usr/sbin")?;
            for name in PROGRAM_FILES {
                archive.file(name, 0o755, &std::fs::read(tree.join(name))?)?;
            }
            Ok(())
        })?;
        let busybox = tree.join("usr/bin/busybox");
        let busybox = std::fs::read(&busybox).map_err(|error| Error::file(&busybox, error))?;
        let common = |archive: &mut Archive<_>| {
            archive.device("dev/console", 5, 1)?;
            add_modules(archive, &modules, 0)?;
            archive.file("init", 0o755, GUEST_INIT.as_bytes())?;
            archive.directory("www")?;
            archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n")?;
            archive.file("etc/group", 0o644, b"root:x:0:\n")
        };
        self.archive(small, |archive| {
            for directory in ["dev", "proc", "sys", "run", "tmp", "etc", "bin", "modules"] {
                archive.directory(directory)?;
            }
            archive.file("bin/busybox", 0o755, &busybox)?;
            archive.link("bin/sh", "busybox")?;
            common(archive)
        })?;
        self.archive(servers, |archive| {
            // Servers use nothing of Xen's.
            archive.tree(tree, &|path| {
                !PATHS_LEFT_OUT.contains(&path) && !path.contains("/libxen") && path != XEN_PATH
            })?;
            for directory in ["dev", "proc", "sys", "run", "tmp", "modules"] {
                if !tree.join(directory).is_dir() {
                    archive.directory(directory)?;
                }
            }
            archive.link("usr/bin/sh", "busybox")?;
            archive.file("etc/nginx.conf", 0o644, GUEST_NGINX.as_bytes())?;
            archive.file("etc/lighttpd.conf", 0o644, GUEST_LIGHTTPD.as_bytes())?;
            common(archive)
        })
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.path(name);
        std::fs::write(&path, content).map_err(|error| Error::file(&path, error))
    }

    fn archive(
        &self,
        name: &str,
        fill: impl FnOnce(&mut Archive<io::BufWriter<std::fs::File>>) -> io::Result<()>,
    ) -> Result<(), Error> {
        let path = self.path(name);
        let written = (|| {
            let mut archive = Archive::new(io::BufWriter::new(std::fs::File::create(&path)?));
            fill(&mut archive)?;
            archive.finish().map(drop)
        })();
        written.map_err(|error| Error::file(&path, error))
    }
}

/// Unpacks the kernel among the packages: its image, and the modules' files.
fn unpack_kernel(
    apt: &Apt,
    packages: &[Package],
    tree: &Path,
    modules: &[&str],
) -> Result<(Vec<u8>, Vec<PathBuf>), Error> {
    make_directory(tree)?;
    // The package without a version in its name is empty and depends on the one.
    for package in packages {
        if package.name.starts_with("linux-image-") {
            unpack(&apt.archive(package), tree)?;
        }
    }
    let image = only_file(&tree.join("boot"), "vmlinuz-", "")?;
    let image = std::fs::read(&image).map_err(|error| Error::file(&image, error))?;
    Ok((image, kernel::modules(&tree.join("lib/modules"), modules)?))
}

/// $XDG_CACHE_HOME/fordway/xen, or ~/.cache/fordway/xen.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(home)
        .unwrap_or_else(|| PathBuf::from("/var/cache"))
        .join("fordway/xen")
}

fn key(bed: Bed, packages: &[Vec<Package>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    RECIPE.hash(&mut hasher);
    for package in packages.iter().flatten() {
        (&package.name, &package.version).hash(&mut hasher);
    }
    let assets = [GUEST_INIT, GUEST_NGINX, GUEST_LIGHTTPD, SIEGE];
    assets.hash(&mut hasher);
    let lists = [LEFT_OUT, PATHS_LEFT_OUT, DOM0_MODULES, GUEST_MODULES];
    (lists, USER_MODULES, USER_LIBRARIES).hash(&mut hasher);
    (BROKER_MODULES, PROGRAM_FILES).hash(&mut hasher);
    if bed == Bed::Linux {
        (PERL_PATHS, LINUX_MODULES).hash(&mut hasher);
    }
    hasher.finish()
}

fn left_out(package: &Package) -> bool {
    LEFT_OUT.iter().any(|name| match name.strip_suffix('-') {
        Some(_) => package.name.starts_with(name),
        None => package.name == *name || package.name.starts_with(&format!("{name}-")),
    }) || package.name.starts_with("libperl")
}

/// As Debian lays a system out since 12.
const MERGED: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

fn merged_tree(tree: &Path) -> Result<(), Error> {
    for (link, target) in MERGED {
        make_directory(&tree.join(target))?;
        let link = tree.join(link);
        std::os::unix::fs::symlink(target, &link).map_err(|error| Error::file(&link, error))?;
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|error| Error::file(path, error))
}

fn only_file(directory: &Path, prefix: &str, suffix: &str) -> Result<PathBuf, Error> {
    let entries = std::fs::read_dir(directory).map_err(|error| Error::file(directory, error))?;
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(suffix)
        })
        .ok_or_else(|| Error::Image(format!("no {prefix}*{suffix} in {}", directory.display())))
}

/// A system with bash and Python: the tree but for the paths `without`, and what makes it one that boots.
fn add_system<W: io::Write>(
    archive: &mut Archive<W>,
    tree: &Path,
    modules: &[PathBuf],
    without: &[&str],
) -> io::Result<()> {
    archive.tree(tree, &|path| {
        !PATHS_LEFT_OUT.contains(&path) && !without.contains(&path) && !path.ends_with("/test")
    })?;
    for directory in ["dev", "proc", "sys", "run", "tmp", "root", "modules"] {
        let made = tree.join(directory).is_dir();
        if !made {
            archive.directory(directory)?;
        }
    }
    archive.device("dev/console", 5, 1)?;
    add_modules(archive, modules, 0)?;
    // What maintainer scripts would have linked.
    for (link, target) in [
        ("sh", "bash"),
        ("awk", "gawk"),
        ("which", "which.debianutils"),
    ] {
        archive.link(&format!("usr/bin/{link}"), target)?;
    }
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/bash\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")
}

/// Numbered in the order of insertion, so that an init needs no list of dependencies.
fn add_modules<W: io::Write>(
    archive: &mut Archive<W>,
    modules: &[PathBuf],
    first: usize,
) -> io::Result<()> {
    for (number, path) in (first..).zip(modules) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let content = std::fs::read(path)?;
        archive.file(&format!("modules/{number:02}-{name}"), 0o644, &content)?;
    }
    Ok(())
}
