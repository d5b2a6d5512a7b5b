//! The first instructions, and the way from them to the application's `main`.
//!
//! ```text
//!   PV:   Xen ─► fordway_start (64 bit, paging on, rsi = start_info)   ─► own stack ─► boot_pv  ─┐
//!   PVH:  Xen ─► fordway_start32 (32 bit, paging off, ebx = hvm_start_info)                      ├─► main
//!               ─► identity tables for 4 GB, long mode, own stack                  ─► boot_pvh ─┘
//! ```
//!
//! The order matters: first the console, so that whatever is missing can be said in one line;
//! then memory (the heap works from there), traps, events, time, grants, XenStore.

use crate::command_line::CommandLine;
use crate::console::{self, Console};
use crate::events::Events;
use crate::grants::Grants;
use crate::hypercall::{self, HYPERCALL_PAGE};
use crate::lifecycle::{self, Reason};
use crate::memory::{self, Memory, Translation};
use crate::shared::SharedPage;
use crate::store::Store;
use crate::suspend::Suspension;
use crate::time::Clock;
use crate::{Domain, traps};
use core::arch::x86_64::__cpuid;
use core::arch::{asm, global_asm};
use core::fmt::Arguments;
use core::mem::offset_of;
use fordway_xen_abi::elfnote::{self, Note};
use fordway_xen_abi::hvm;
use fordway_xen_abi::memory::SPACE_SHARED_INFO;
use fordway_xen_abi::start::{FLAG_MODULE_IS_FRAME, MAGIC, StartInfo};
use fordway_xen_abi::{DOMID_SELF, PAGE_SIZE, hypercall as number};

/// Bytes of the one stack. The page below it is unmapped (PV): an overflow ends the domain.
const STACK_SIZE: usize = 64 * 1024;
/// Where the linker script puts the image.
const IMAGE_FIRST_PAGE: usize = 0x10_0000 / PAGE_SIZE;
const PVH_CODE: u16 = 8;

global_asm!(
    ".pushsection .bss.fordway_stack, \"aw\", @nobits",
    ".p2align 12",
    "fordway_stack:",
    ".skip 4096 + {stack_size}",
    "fordway_stack_top:",
    // PVH only: a page directory, one table below it, four tables of 2 MB pages.
    ".p2align 12",
    "fordway_tables:",
    ".skip 6 * 4096",
    ".popsection",
    ".pushsection .text.fordway_start, \"ax\", @progbits",
    ".global fordway_start",
    "fordway_start:",
    "cld",
    "xor ebp, ebp",
    "mov rdi, rsi",
    "lea rsp, [fordway_stack_top]",
    "call {boot_pv}",
    "ud2",
    ".code32",
    ".global fordway_start32",
    "fordway_start32:",
    "cld",
    "mov esp, offset fordway_stack_top",
    "mov edi, offset fordway_tables",
    // Directory and the table below it.
    "lea eax, [edi + 4096 + 3]",
    "mov [edi], eax",
    "lea eax, [edi + 8192 + 3]",
    "xor ecx, ecx",
    "2:",
    "mov [edi + 4096 + ecx * 8], eax",
    "add eax, 4096",
    "inc ecx",
    "cmp ecx, 4",
    "jb 2b",
    // 2048 entries of 2 MB: present, writable, large.
    "mov eax, 0x83",
    "xor ecx, ecx",
    "3:",
    "mov [edi + 8192 + ecx * 8], eax",
    "add eax, 0x200000",
    "inc ecx",
    "cmp ecx, 2048",
    "jb 3b",
    // PAE and SSE; the tables; long mode; paging, write protection, no emulated coprocessor.
    "mov eax, cr4",
    "or eax, 0x620",
    "mov cr4, eax",
    "mov cr3, edi",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or eax, 0x100",
    "wrmsr",
    "mov eax, 0x80010033",
    "mov cr0, eax",
    "lgdt [fordway_descriptors_register]",
    "push 8",
    "mov eax, offset fordway_start64",
    "push eax",
    "retf",
    ".code64",
    "fordway_start64:",
    "mov eax, 16",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor ebp, ebp",
    "mov edi, ebx",
    "lea rsp, [fordway_stack_top]",
    "call {boot_pvh}",
    "ud2",
    ".p2align 3",
    "fordway_descriptors:",
    ".quad 0",
    ".quad 0x00af9b000000ffff",
    ".quad 0x00cf93000000ffff",
    "fordway_descriptors_register:",
    ".word 23",
    ".quad fordway_descriptors",
    ".popsection",
    stack_size = const STACK_SIZE,
    boot_pv = sym boot_pv,
    boot_pvh = sym boot_pvh,
);

unsafe extern "C" {
    fn fordway_start();
    fn fordway_start32();
    static fordway_stack: u8;
    static fordway_stack_top: u8;
    /// The end of the image, by the linker script.
    static fordway_image_end: u8;
}

unsafe extern "Rust" {
    /// The application, see [`crate::image`].
    safe fn fordway_main(domain: Domain) -> !;
}

/// A note whose payload is an address of the image.
#[repr(C, packed(4))]
struct AddressNote {
    head: [u32; 3],
    name: [u8; 4],
    address: Address,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    code: unsafe extern "C" fn(),
    page: &'static hypercall::HypercallPage,
}

// SAFETY: read by the domain builder only.
unsafe impl Sync for AddressNote {}

const fn address_note(kind: u32, address: Address) -> AddressNote {
    AddressNote {
        head: [4, 8, kind],
        name: *elfnote::NAME,
        address,
    }
}

macro_rules! notes {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(#[used]
        #[unsafe(link_section = ".note.Xen")]
        static $name: $kind = $value;)*
    };
}

notes! {
    NOTE_ENTRY: AddressNote =
        address_note(elfnote::ENTRY, Address { code: fordway_start });
    NOTE_ENTRY32: AddressNote =
        address_note(elfnote::PHYS32_ENTRY, Address { code: fordway_start32 });
    NOTE_HYPERCALLS: AddressNote =
        address_note(elfnote::HYPERCALL_PAGE, Address { page: &HYPERCALL_PAGE });
    NOTE_BASE: Note<8> = Note::number(elfnote::VIRT_BASE, 0);
    NOTE_OFFSET: Note<8> = Note::number(elfnote::PADDR_OFFSET, 0);
    NOTE_XEN: Note<8> = Note::bytes(elfnote::XEN_VERSION, *b"xen-3.0\0");
    NOTE_LOADER: Note<8> = Note::bytes(elfnote::LOADER, *b"generic\0");
    NOTE_OS: Note<8> = Note::bytes(elfnote::GUEST_OS, *b"Fordway\0");
    NOTE_PAE: Note<4> = Note::bytes(elfnote::PAE_MODE, *b"yes\0");
    NOTE_FEATURES: Note<44> = Note::bytes(
        elfnote::FEATURES,
        *b"!writable_page_tables|pae_pgdir_above_4gb\0\0\0",
    );
}

/// Whether `len` bytes at `address` lie on the stack.
pub fn is_stack(address: usize, len: usize) -> bool {
    let (first, end) = (
        &raw const fordway_stack as usize + PAGE_SIZE,
        &raw const fordway_stack_top as usize,
    );
    address >= first && address + len <= end
}

extern "C" fn boot_pv(info: *const StartInfo) -> ! {
    let info_address = info as usize;
    // SAFETY: Xen's builder put the structure there and maps it. A copy: the toolstack changes
    // it while the domain is suspended.
    let info = unsafe { info.read() };
    if !info.magic.starts_with(MAGIC) {
        // No console yet: the hypervisor's log shows the crash.
        lifecycle::end(Reason::Crash);
    }
    let page_of = |mfn: u64| {
        let address = memory::machine_to_pseudo(mfn) as usize * PAGE_SIZE;
        // SAFETY: a page of the domain in the builder's mapping, shared with dom0 for good.
        unsafe { SharedPage::new(address as *mut u8) }
    };
    let console_page = page_of(info.console_mfn);
    console::install(Console::new(console_page, info.console_port));
    check_hypervisor();
    if info.flags & FLAG_MODULE_IS_FRAME != 0 && info.module_len > 0 {
        lifecycle::unsupported(format_args!("the ramdisk is not mapped"));
    }
    let store_page = page_of(info.store_mfn);
    let page_count = info.page_count as usize;
    // Everything that the builder put into the domain lies before the first free page.
    let used = [
        &raw const fordway_image_end as usize,
        (info.module_start + info.module_len) as usize,
        (info.p2m + info.page_count * 8) as usize,
        info_address + size_of::<StartInfo>(),
        console_page.address() + PAGE_SIZE,
        store_page.address() + PAGE_SIZE,
        (info.page_table + info.page_table_frames * PAGE_SIZE as u64) as usize,
    ];
    let first_free = used.into_iter().max().unwrap_or(0).div_ceil(PAGE_SIZE);
    let translation = Translation::Tables {
        p2m: info.p2m as *const u64,
        root: info.page_table as usize,
    };
    // SAFETY: start_info is the truth about this domain.
    let memory = unsafe {
        let mapped = memory::builder_mapping(info.page_table as usize, page_count);
        Memory::new(
            translation,
            page_count,
            IMAGE_FIRST_PAGE,
            first_free,
            mapped,
        )
    };
    memory::install(need("memory", memory));
    // SAFETY: nothing lives in the page below the stack.
    let guard = memory::with(|m| unsafe { m.unmap(&raw const fordway_stack as usize) });
    need("the stack's guard page", guard);
    let shared_info = memory::with(|m| {
        // SAFETY: Xen gave this frame to this domain.
        unsafe { m.map_machine_frame(info.shared_info_maddr / PAGE_SIZE as u64) }
    });
    let shared_info = need("the shared page", shared_info);
    need("traps", traps::install_pv(shared_info));
    // SAFETY: the builder put these there; their pages are never handed out, and nobody writes them.
    let (command_line, ramdisk) = unsafe {
        let line = info_address + offset_of!(StartInfo, command_line);
        let line = bytes_at(line as u64, info.command_line.len() as u64);
        let ramdisk = bytes_at(info.module_start, info.module_len);
        (until_zero(line), ramdisk)
    };
    // SAFETY: a page of the builder's, which has nothing else on it that is written.
    let start_info = unsafe { SharedPage::new(info_address as *mut u8) };
    let suspension = Suspension::new(start_info, shared_info, info.p2m as usize);
    run(Handed {
        pv: true,
        suspension,
        shared_info,
        console_port: info.console_port,
        store_page,
        store_port: info.store_port,
        command_line,
        ramdisk,
    })
}

extern "C" fn boot_pvh(info: *const hvm::StartInfo) -> ! {
    // SAFETY: Xen's builder put the structure there; the first 4 GB are mapped.
    let info = unsafe { *info };
    let leaf = __cpuid(hvm::CPUID_BASE);
    if info.magic != hvm::START_MAGIC || [leaf.ebx, leaf.ecx, leaf.edx] != hvm::CPUID_SIGNATURE {
        // Neither a console nor a hypervisor to tell.
        halt();
    }
    // Leaf 2: the register that has Xen fill the hypercall page.
    let register = __cpuid(hvm::CPUID_BASE + 2).ebx;
    let page = &raw const HYPERCALL_PAGE as u64;
    // SAFETY: the page is ours and exists for this.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") page as u32, in("edx") (page >> 32) as u32);
    }
    let console_port = parameter(hvm::PARAM_CONSOLE_EVTCHN) as u32;
    let special = |index| {
        let address = parameter(index) as usize * PAGE_SIZE;
        // SAFETY: a page that the builder set aside, below 4 GB, shared with dom0 for good.
        unsafe { SharedPage::new(address as *mut u8) }
    };
    console::install(Console::new(special(hvm::PARAM_CONSOLE_PFN), console_port));
    check_hypervisor();
    if info.version == 0 {
        lifecycle::unsupported(format_args!("this Xen gives a PVH guest no memory map"));
    }
    let mut page_count = 0;
    for index in 0..u64::from(info.memory_map_entries) {
        let at = info.memory_map_paddr as usize + index as usize * size_of::<hvm::MemoryRange>();
        // SAFETY: the builder's table, below 4 GB.
        let range = unsafe { (at as *const hvm::MemoryRange).read_unaligned() };
        // The range with the image in it is the one that is used.
        let image = (IMAGE_FIRST_PAGE * PAGE_SIZE) as u64;
        if range.kind == hvm::RAM && range.addr <= image && range.addr + range.size > image {
            page_count = (range.addr + range.size) as usize / PAGE_SIZE;
        }
    }
    let mut used = &raw const fordway_image_end as usize;
    let mut module = (0, 0);
    if info.modules > 0 {
        // SAFETY: the builder's list, below 4 GB.
        let first = unsafe { (info.module_list_paddr as *const hvm::Module).read_unaligned() };
        module = (first.paddr, first.size);
    }
    // SAFETY: the builder put these there, below 4 GB; their pages are never handed out.
    let (command_line, ramdisk) = unsafe {
        let line = bytes_at(
            info.command_line_paddr,
            if info.command_line_paddr == 0 {
                0
            } else {
                1024
            },
        );
        (until_zero(line), bytes_at(module.0, module.1))
    };
    for end in [
        (module.0 + module.1) as usize,
        info.command_line_paddr as usize + 1024,
        info.memory_map_paddr as usize + PAGE_SIZE,
        info.module_list_paddr as usize + PAGE_SIZE,
    ] {
        if end <= page_count * PAGE_SIZE {
            used = used.max(end);
        }
    }
    let first_free = used.div_ceil(PAGE_SIZE);
    // SAFETY: the memory map is the truth about this domain. The first megabyte is left alone.
    let memory = unsafe {
        Memory::new(
            Translation::Same,
            page_count,
            1,
            first_free,
            page_count * PAGE_SIZE,
        )
    };
    memory::install(need("memory", memory));
    traps::install_pvh(PVH_CODE);
    // SAFETY: the one page that Xen shares with this domain.
    let shared_info = memory::with(|m| unsafe { m.map_space(SPACE_SHARED_INFO, 0) });
    run(Handed {
        pv: false,
        suspension: None,
        shared_info: need("the shared page", shared_info),
        console_port,
        store_page: special(hvm::PARAM_STORE_PFN),
        store_port: parameter(hvm::PARAM_STORE_EVTCHN) as u32,
        command_line,
        ramdisk,
    })
}

/// What both ways of booting find.
struct Handed {
    pv: bool,
    suspension: Option<Suspension>,
    shared_info: SharedPage,
    console_port: u32,
    store_page: SharedPage,
    store_port: u32,
    command_line: &'static str,
    ramdisk: &'static [u8],
}

fn run(handed: Handed) -> ! {
    let clock = Clock::new(handed.shared_info);
    let mut events = Events::new(handed.shared_info);
    events.open(handed.console_port);
    events.open(handed.store_port);
    let grants = need("a grant table", Grants::new(!handed.pv));
    let store = Store::new(handed.store_page, handed.store_port, events.bits(), clock);
    fordway_main(Domain {
        pv: handed.pv,
        command_line: CommandLine(handed.command_line),
        ramdisk: handed.ramdisk,
        console_port: handed.console_port,
        clock,
        events,
        grants,
        store,
        suspension: handed.suspension,
    })
}

fn check_hypervisor() {
    // SAFETY: the command takes no argument.
    let version =
        unsafe { hypercall::words::<{ number::XEN_VERSION }>(number::XENVER_VERSION, 0, 0, 0) };
    match version {
        Ok(version) if version >> 16 >= 4 => {}
        Ok(version) => lifecycle::unsupported(format_args!(
            "Xen {}.{} is too old, 4.0 is needed",
            version >> 16,
            version & 0xffff
        )),
        Err(error) => lifecycle::unsupported(format_args!("no Xen version: {error}")),
    }
}

/// The value, or the end of the domain with a line that names what is missing.
fn need<T, E: core::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => lifecycle::unsupported(format_args!("{what}: {error}")),
    }
}

/// A number that the builder left for a PVH guest.
fn parameter(index: u32) -> u64 {
    let mut request = hvm::Param {
        domain: DOMID_SELF,
        index,
        value: 0,
    };
    // SAFETY: Xen writes the value only.
    match unsafe { hypercall::command::<{ number::HVM_OP }, _>(hvm::GET_PARAM, &mut request) } {
        Ok(_) => request.value,
        Err(_) => 0,
    }
}

/// # Safety
/// The bytes are mapped, nobody writes them, and they are never handed out.
unsafe fn bytes_at(address: u64, len: u64) -> &'static [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { core::slice::from_raw_parts(address as *const u8, len as usize) }
}

fn until_zero(bytes: &'static [u8]) -> &'static str {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).unwrap_or("")
}

fn halt() -> ! {
    loop {
        // SAFETY: nothing is left to do.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say(format_args!("fordway: {info}"));
    lifecycle::end(Reason::Crash)
}

/// The precompiled `alloc` names this in clean-up code that is never reached: a panic ends the
/// domain and unwinds nothing.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    lifecycle::end(Reason::Crash)
}

fn say(text: Arguments<'_>) {
    crate::console_line!("{text}");
}
