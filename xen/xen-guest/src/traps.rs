//! Traps: a fault of ours ends the domain with a dump that a person can read.
//!
//! Each vector has a stub of 16 bytes that pushes its number; the rest is common. Xen hands a PV
//! guest's trap over on the current stack, with rcx and r11 on top of what a processor
//! pushes; as PVH the processor pushes its own frame through our descriptor table. Nothing
//! returns from a trap, so that the red zone it may have overwritten does not matter.

use crate::console_line;
use crate::hypercall::{self, Refused};
use crate::lifecycle::{self, Reason};
use crate::local::Local;
use crate::shared::SharedPage;
use core::arch::{asm, global_asm};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use fordway_xen_abi::hypercall as number;
use fordway_xen_abi::shared::offset;
use fordway_xen_abi::traps::{KERNEL_CS, TrapInfo};

const VECTORS: usize = 32;
const STUB_SIZE: usize = 16;

const NAMES: [&str; 22] = [
    "divide error",
    "debug",
    "non-maskable interrupt",
    "breakpoint",
    "overflow",
    "bound",
    "invalid instruction",
    "no floating point",
    "double fault",
    "coprocessor",
    "invalid TSS",
    "segment not present",
    "stack fault",
    "general protection",
    "page fault",
    "spurious",
    "floating point",
    "alignment",
    "machine check",
    "vector floating point",
    "virtualisation",
    "control protection",
];

/// Vectors for which the processor pushes an error code.
const WITH_ERROR: u32 =
    1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21;

global_asm!(
    ".pushsection .text.fordway_traps, \"ax\", @progbits",
    ".p2align 4",
    "fordway_trap_stubs:",
    ".set vector, 0",
    ".rept 32",
    ".p2align 4",
    ".byte 0x6a",
    ".byte vector",
    "jmp 2f",
    ".set vector, vector + 1",
    ".endr",
    "2:",
    "push r15", "push r14", "push r13", "push r12", "push r11", "push r10", "push r9", "push r8",
    "push rbp", "push rdi", "push rsi", "push rdx", "push rcx", "push rbx", "push rax",
    "mov rdi, rsp",
    "and rsp, -16",
    "cld",
    "call {report}",
    "ud2",
    ".popsection",
    report = sym report,
);

unsafe extern "C" {
    static fordway_trap_stubs: [u8; VECTORS * STUB_SIZE];
}

/// What the report has to know of the domain.
struct Context {
    pv: Cell<bool>,
    shared_info: Cell<Option<SharedPage>>,
    reporting: Cell<bool>,
}

static CONTEXT: Local<Context> = Local::new(Context {
    pv: Cell::new(true),
    shared_info: Cell::new(None),
    reporting: Cell::new(false),
});

fn stub(vector: usize) -> u64 {
    (&raw const fordway_trap_stubs) as u64 + (vector * STUB_SIZE) as u64
}

/// Has Xen hand our traps to the stubs.
pub fn install_pv(shared_info: SharedPage) -> Result<(), Refused> {
    CONTEXT.get().shared_info.set(Some(shared_info));
    let mut table = [TrapInfo {
        vector: 0,
        flags: 0,
        selector: 0,
        address: 0,
    }; VECTORS + 1];
    for (vector, entry) in table[..VECTORS].iter_mut().enumerate() {
        // Privilege 3 in the flags' low bits: breakpoints may come from anywhere.
        let flags = if vector == 3 || vector == 4 { 3 } else { 0 };
        *entry = TrapInfo {
            vector: vector as u8,
            flags,
            selector: KERNEL_CS,
            address: stub(vector),
        };
    }
    // SAFETY: Xen copies the table; the stubs are code of ours.
    unsafe {
        hypercall::words::<{ number::SET_TRAP_TABLE }>(table.as_ptr() as usize, 0, 0, 0)?;
    }
    Ok(())
}

/// Has the processor hand our traps to the stubs (PVH).
pub fn install_pvh(code_selector: u16) {
    #[repr(C, packed)]
    struct Register {
        limit: u16,
        base: u64,
    }
    static TABLE: Local<Cell<[[u64; 2]; VECTORS]>> = Local::new(Cell::new([[0; 2]; VECTORS]));
    CONTEXT.get().pv.set(false);
    let gates = core::array::from_fn(|vector| {
        let address = stub(vector);
        // Interrupt gate, present, privilege 0.
        let low = (address & 0xffff)
            | u64::from(code_selector) << 16
            | 0x8e00 << 32
            | (address >> 16 & 0xffff) << 48;
        [low, address >> 32]
    });
    TABLE.get().set(gates);
    let register = Register {
        limit: (size_of::<[[u64; 2]; VECTORS]>() - 1) as u16,
        base: TABLE.get().as_ptr() as u64,
    };
    // SAFETY: the table is static and filled.
    unsafe { asm!("lidt [{}]", in(reg) &raw const register, options(nostack)) };
}

/// Prints what is known of a trap and ends the domain. `frame` points at the registers that
/// the stubs pushed, then the vector, then what Xen or the processor pushed.
extern "C" fn report(frame: *const u64) -> ! {
    let context = CONTEXT.get();
    if context.reporting.replace(true) {
        // The report itself trapped: say no more.
        lifecycle::end(Reason::Crash);
    }
    // SAFETY: the stubs pushed sixteen words, and the frame behind them has at most eight.
    let word = |at: usize| unsafe { frame.add(at).read() };
    let vector = word(15) as usize;
    let mut at = 16;
    let (mut rcx, mut r11) = (word(2), word(11));
    if context.pv.get() {
        (rcx, r11) = (word(16), word(17));
        at = 18;
    }
    let error = (WITH_ERROR >> vector & 1 != 0).then(|| {
        at += 1;
        word(at - 1)
    });
    let (rip, flags, rsp) = (word(at), word(at + 2), word(at + 3));
    let name = NAMES.get(vector).copied().unwrap_or("reserved vector");
    console_line!("fordway: trap {vector}, {name}, at {rip:#x}");
    if vector == 14 {
        let address = match context.shared_info.get() {
            Some(page) => page.load_u64(offset::CR2, Ordering::Relaxed),
            None => cr2(),
        };
        let error = error.unwrap_or(0);
        let what = match (error & 1 != 0, error & 2 != 0, error & 16 != 0) {
            (_, _, true) => "jump to",
            (_, true, _) => "write to",
            _ => "read from",
        };
        let why = if error & 1 != 0 {
            "which is protected"
        } else {
            "which is not mapped"
        };
        console_line!("  {what} {address:#x}, {why}");
    } else if let Some(error) = error {
        console_line!("  error code {error:#x}");
    }
    let names = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8 ", "r9 ", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    for row in 0..5 {
        let value = |i: usize| match i {
            2 => rcx,
            10 => r11,
            _ => word(i),
        };
        let [a, b, c] = [row * 3, row * 3 + 1, row * 3 + 2];
        console_line!(
            "  {} {:016x}  {} {:016x}  {} {:016x}",
            names[a],
            value(a),
            names[b],
            value(b),
            names[c],
            value(c)
        );
    }
    console_line!("  rsp {rsp:016x}  flags {flags:016x}");
    if rsp.is_multiple_of(8) && crate::start::is_stack(rsp as usize, 8 * 8) {
        for row in 0..4u64 {
            let at = rsp + row * 16;
            // SAFETY: on the stack, which is mapped; see the check above.
            let (a, b) = unsafe { ((at as *const u64).read(), (at as *const u64).add(1).read()) };
            console_line!("  {at:016x}: {a:016x} {b:016x}");
        }
    }
    lifecycle::end(Reason::Crash)
}

fn cr2() -> u64 {
    let value: u64;
    // SAFETY: reading the register has no effect; only PVH guests come here.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack)) };
    value
}
