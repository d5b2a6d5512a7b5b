//! What an executable image is, as far as the shim's chances in it go.
//!
//! The launcher asks before it executes a program, to say in one line when the shim
//! will not be there: the dynamic loader of the C library is what loads it, and some
//! images have another loader, none, or one that is told by the kernel to ignore
//! LD_PRELOAD (AT_SECURE, ld.so(8)). Nothing here decides anything: an image that is
//! judged wrongly still runs, on the kernel path at worst.
//!
//! A script is judged by its interpreter (`#!`, one level, as far as execve(2) goes
//! before the loader matters).

use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, ReadRef};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest first line of a script that the kernel reads (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES_MAX: usize = 256;

/// How the names of dynamic loaders begin: glibc's and musl's.
const LOADERS: [&[u8]; 2] = [b"ld-linux", b"ld-musl"];

/// Why the shim will not be in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic loader.
    Static,
    /// Go makes its system calls itself, whatever it is linked to.
    Go,
    /// Runs as another user than its caller: the loader takes no LD_PRELOAD.
    SetUser,
    /// Runs as another group than its caller.
    SetGroup,
    /// Has file capabilities and its caller is not root.
    Capabilities,
    /// Built for another machine or word size than the shim.
    Foreign,
}

impl Obstacle {
    /// How it is said after "PROGRAM ".
    pub fn text(self) -> &'static str {
        match self {
            Obstacle::Static => "is static",
            Obstacle::Go => "is a Go program",
            Obstacle::SetUser => "is setuid",
            Obstacle::SetGroup => "is setgid",
            Obstacle::Capabilities => "has file capabilities",
            Obstacle::Foreign => "is built for another kind of machine",
        }
    }
}

/// What was found out about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The file that is loaded: the program, or its script's interpreter.
    pub file: PathBuf,
    /// Why the shim will not be in it, if so.
    pub obstacle: Option<Obstacle>,
}

/// Where execvp(3) finds a program; `None` if nowhere.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|file| file.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let executable = |file: &PathBuf| {
        file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
    };
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(executable)
}

/// Judges the program in `file`.
pub fn inspect(file: &Path) -> io::Result<Image> {
    if let Some(obstacle) = privilege(file)? {
        return Ok(Image {
            file: file.into(),
            obstacle: Some(obstacle),
        });
    }
    let interpreter = script_interpreter(file)?;
    // The kernel takes no privileges from a script, so the interpreter's count.
    let file = interpreter.unwrap_or_else(|| file.into());
    let obstacle = match privilege(&file)? {
        Some(obstacle) => Some(obstacle),
        None => code(&file)?,
    };
    Ok(Image { file, obstacle })
}

/// The value of an exported variable of a shared object, as it is in the file.
pub fn exported_u32(file: &Path, symbol: &str) -> Option<u32> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let data = &cache;
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).ok()?;
    let named = |entry: &&elf::Sym64<Endianness>| {
        symbols
            .symbol_name(endian, *entry)
            .is_ok_and(|name| name == symbol.as_bytes())
    };
    let address = symbols.iter().find(named)?.st_value(endian);
    header
        .program_headers(endian, data)
        .ok()?
        .iter()
        .find_map(|segment| {
            let bytes = segment.data_range(endian, data, address, 4).ok()??;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        })
}

/// A function of a shared object.
#[derive(Clone, Debug)]
pub struct Function {
    /// As the linker knows it.
    pub name: String,
    /// Its addresses, if the object is loaded at 0.
    pub addresses: std::ops::Range<u64>,
}

/// The functions of a shared object that is not stripped, in the order of their addresses, each once.
pub fn functions(file: &Path) -> io::Result<Vec<Function>> {
    let cache = ReadCache::new(File::open(file)?);
    let mut functions = symbols_of_functions(&cache).map_err(io::Error::other)?;
    functions.sort_by_key(|function| (function.addresses.start, function.addresses.end));
    functions.dedup_by_key(|function| function.addresses.start);
    Ok(functions)
}

fn symbols_of_functions<'data, R: ReadRef<'data>>(data: R) -> object::read::Result<Vec<Function>> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let symbols = header
        .sections(endian, data)?
        .symbols(endian, data, elf::SHT_SYMTAB)?;
    let functions = symbols
        .iter()
        .filter(|symbol| symbol.st_type() == elf::STT_FUNC);
    functions
        .filter(|symbol| symbol.st_value(endian) != 0)
        .map(|symbol| {
            let start = symbol.st_value(endian);
            Ok(Function {
                name: String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned(),
                addresses: start..start + symbol.st_size(endian),
            })
        })
        .collect()
}

/// When the kernel sets AT_SECURE: the identity changes, or capabilities are gained
/// by somebody who is not root (capabilities(7), cap_bprm_creds_from_file).
fn privilege(file: &Path) -> io::Result<Option<Obstacle>> {
    let meta = file.metadata()?;
    let uid = rustix::process::getuid();
    if meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid.as_raw() {
        return Ok(Some(Obstacle::SetUser));
    }
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    if meta.mode() & setgid == setgid && meta.gid() != rustix::process::getgid().as_raw() {
        return Ok(Some(Obstacle::SetGroup));
    }
    let mut none = [0u8; 0];
    let has_capabilities = rustix::fs::getxattr(file, "security.capability", &mut none).is_ok();
    Ok((has_capabilities && !uid.is_root()).then_some(Obstacle::Capabilities))
}

fn script_interpreter(file: &Path) -> io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    File::open(file)?
        .take(SCRIPT_LINE_BYTES_MAX as u64)
        .read_to_end(&mut line)?;
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    Ok(words
        .next()
        .map(|word| PathBuf::from(OsStr::from_bytes(word))))
}

fn code(file: &Path) -> io::Result<Option<Obstacle>> {
    let file_name = file.file_name().unwrap_or_default().as_bytes().to_owned();
    let file = File::open(file)?;
    let mut ident = [0u8; 20];
    if file.read_exact_at(&mut ident, 0).is_err() || ident[..4] != elf::ELFMAG {
        return Ok(None); // not ELF: execve will say what it thinks of it
    }
    let machine = u16::from_le_bytes([ident[18], ident[19]]);
    if ident[4] != elf::ELFCLASS64.0 || machine != OWN_MACHINE {
        return Ok(Some(Obstacle::Foreign));
    }
    let cache = ReadCache::new(file);
    // What cannot be parsed is execve's business too.
    Ok(obstacle_in(&cache, &file_name).unwrap_or(None))
}

#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u16 = elf::EM_X86_64.0;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u16 = elf::EM_AARCH64.0;

fn obstacle_in<'data, R: ReadRef<'data>>(
    data: R,
    file_name: &[u8],
) -> object::read::Result<Option<Obstacle>> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    if is_go(header, endian, data)? {
        return Ok(Some(Obstacle::Go));
    }
    for segment in header.program_headers(endian, data)? {
        if segment.interpreter(endian, data)?.is_some() {
            return Ok(None);
        }
    }
    // `ld.so PROGRAM`: the loader itself needs none and does preload.
    let loads = LOADERS.iter().any(|name| file_name.starts_with(name));
    Ok((!loads).then_some(Obstacle::Static))
}

/// The linker of Go writes a note of its own ("Go", build id), a section with the
/// build's settings, or both; `-buildid=` and strip leave at least one.
fn is_go<'data, R: ReadRef<'data>>(
    header: &elf::FileHeader64<Endianness>,
    endian: Endianness,
    data: R,
) -> object::read::Result<bool> {
    let sections = header.sections(endian, data)?;
    for section in sections.iter() {
        if sections.section_name(endian, section)? == b".go.buildinfo" {
            return Ok(true);
        }
        if let Some(mut notes) = section.notes(endian, data)? {
            while let Some(note) = notes.next()? {
                if note.name() == b"Go" {
                    return Ok(true);
                }
            }
        }
    }
    for segment in header.program_headers(endian, data)? {
        if let Some(mut notes) = segment.notes(endian, data)? {
            while let Some(note) = notes.next()? {
                if note.name() == b"Go" {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_programs_have_no_obstacle() {
        let file = find_program(OsStr::new("getent")).expect("getent");
        assert_eq!(inspect(&file).expect("inspect").obstacle, None);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = std::env::temp_dir().join(format!("fordway-elf-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let script = dir.join("script");
        std::fs::write(&script, "#! /bin/sh -e\nexit 0\n").expect("write");
        let image = inspect(&script).expect("inspect");
        assert_eq!((image.file, image.obstacle), ("/bin/sh".into(), None));
        std::fs::write(&script, "#!/bin/sh").expect("write");
        assert_eq!(
            script_interpreter(&script).expect("read"),
            Some("/bin/sh".into())
        );
        std::fs::write(&script, "#!").expect("write");
        assert_eq!(script_interpreter(&script).expect("read"), None);
        std::fs::write(&script, "\x7fELF truncated").expect("write");
        assert_eq!(inspect(&script).expect("inspect").obstacle, None);
        std::fs::remove_dir_all(&dir).expect("clean");
    }

    #[test]
    fn programs_are_found_as_execvp_finds_them() {
        assert!(find_program(OsStr::new("sh")).is_some());
        assert_eq!(find_program(OsStr::new("/nowhere/sh")), None);
        assert_eq!(find_program(OsStr::new("no-such-program-here")), None);
    }
}
