//! Copying, filling and comparing bytes.
//!
//! Two users: memory that another domain can write (where the compiler must know nothing of
//! the access, so that it can neither repeat nor assume it), and, in an image, `memcpy` and
//! its kin, which a `no_std` program has to bring along. Written in assembly for both
//! reasons, and because a compiler would turn such a loop into a call of `memcpy` again.
//! Sixteen bytes at a time: a `rep movsb` counts one instruction for each byte where
//! instructions are counted, and starts slowly on real processors.

use core::arch::global_asm;

global_asm!(
    // rdi: to, rsi: from, rdx: length; returns rdi in rax. Regions do not overlap.
    ".pushsection .text.fordway_copy, \"ax\", @progbits",
    ".global fordway_copy",
    ".p2align 4",
    "fordway_copy:",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 4f",
    "cmp rdx, 32",
    "ja 1f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    // The last 64 bytes are taken at the end, overlapping what the loop has copied.
    "1:",
    "cmp rdx, 64",
    "jbe 3f",
    "lea rcx, [rdx - 1]",
    "shr rcx, 6",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "add rdx, rdi",
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 2b",
    "movups [rdx - 64], xmm4",
    "movups [rdx - 48], xmm5",
    "movups [rdx - 32], xmm6",
    "movups [rdx - 16], xmm7",
    "ret",
    "3:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "ret",
    "4:",
    "cmp rdx, 8",
    "jb 5f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "5:",
    "cmp rdx, 4",
    "jb 6f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "6:",
    "test rdx, rdx",
    "je 7f",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    // One, two or three bytes: the first, the middle and the last of them.
    "mov r10, rdx",
    "shr r10",
    "movzx r9d, byte ptr [rsi + r10]",
    "mov [rdi], cl",
    "mov [rdi + r10], r9b",
    "mov [rdi + rdx - 1], r8b",
    "7:",
    "ret",
    ".popsection",
);

#[cfg(feature = "image")]
global_asm!(
    ".pushsection .text.fordway_memory, \"ax\", @progbits",
    ".global memcpy",
    ".set memcpy, fordway_copy",
    ".global memmove",
    ".p2align 4",
    "memmove:",
    // Forwards is right unless the target begins inside the source.
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jae fordway_copy_forwards",
    "mov rax, rdi",
    "2:",
    "cmp rdx, 16",
    "jb 3f",
    "movups xmm0, [rsi + rdx - 16]",
    "movups [rdi + rdx - 16], xmm0",
    "sub rdx, 16",
    "jmp 2b",
    "3:",
    "test rdx, rdx",
    "je 4f",
    "mov cl, [rsi + rdx - 1]",
    "mov [rdi + rdx - 1], cl",
    "dec rdx",
    "jmp 3b",
    "4:",
    "ret",
    // The copy above reads its tail before it writes: wrong where the source begins inside
    // the target, so this one goes strictly forwards.
    "fordway_copy_forwards:",
    "mov rax, rdi",
    "xor ecx, ecx",
    "mov r8, rdx",
    "and r8, -16",
    "je 6f",
    "5:",
    "movups xmm0, [rsi + rcx]",
    "movups [rdi + rcx], xmm0",
    "add rcx, 16",
    "cmp rcx, r8",
    "jb 5b",
    "6:",
    "cmp rcx, rdx",
    "je 4b",
    "mov r9b, [rsi + rcx]",
    "mov [rdi + rcx], r9b",
    "inc rcx",
    "jmp 6b",
    ".global memset",
    ".p2align 4",
    "memset:",
    "mov rax, rdi",
    "movzx esi, sil",
    "mov rcx, 0x0101010101010101",
    "imul rsi, rcx",
    "cmp rdx, 16",
    "jb 8f",
    "movq xmm0, rsi",
    "punpcklqdq xmm0, xmm0",
    "movups [rdi + rdx - 16], xmm0",
    "shr rdx, 4",
    "7:",
    "movups [rdi], xmm0",
    "add rdi, 16",
    "dec rdx",
    "jnz 7b",
    "ret",
    "8:",
    "test rdx, rdx",
    "je 4b",
    "mov [rdi + rdx - 1], sil",
    "dec rdx",
    "jmp 8b",
    ".global memcmp",
    ".global bcmp",
    ".set bcmp, memcmp",
    ".p2align 4",
    "memcmp:",
    "xor ecx, ecx",
    "2:",
    "lea r8, [rcx + 8]",
    "cmp r8, rdx",
    "ja 3f",
    "mov rax, [rdi + rcx]",
    "mov r9, [rsi + rcx]",
    "cmp rax, r9",
    "jne 5f",
    "mov rcx, r8",
    "jmp 2b",
    "3:",
    "cmp rcx, rdx",
    "jae 4f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r9d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r9d",
    "je 3b",
    "ret",
    "4:",
    "xor eax, eax",
    "ret",
    // Eight bytes differ: as numbers with the first byte on top they compare as bytes do.
    "5:",
    "bswap rax",
    "bswap r9",
    "cmp rax, r9",
    "sbb eax, eax",
    "or eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn fordway_copy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
}

/// Copies `len` bytes; either side may be memory that another domain is writing, in which
/// case the copy holds any mixture of old and new bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two do not overlap.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as the caller promises; the routine touches exactly those bytes.
    unsafe { fordway_copy(to, from, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_short_length_at_every_alignment_is_copied_whole_and_nothing_else() {
        let from: [u8; 400] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for len in 0..330 {
            for shift in [0, 1, 3, 8, 15] {
                let mut to = [0u8; 400];
                // SAFETY: both arrays hold `len` bytes behind these positions.
                unsafe { super::copy(to[20..].as_mut_ptr(), from[shift..].as_ptr(), len) };
                assert_eq!(to[20..20 + len], from[shift..shift + len], "{len} bytes");
                assert!(
                    to[..20].iter().chain(&to[20 + len..]).all(|&b| b == 0),
                    "{len} bytes"
                );
            }
        }
    }
}
