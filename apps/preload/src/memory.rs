//! The memory functions that compiled code calls by name. Libraries usually take
//! them from libc; this one must not need a libc by name (musl's loader would look
//! for glibc's file). Hidden, so that the program keeps its own. Nothing that is
//! hot comes here: bytes of connections are moved by `fordway_ring::copy`.

core::arch::global_asm!(
    ".globl memcpy", ".hidden memcpy", ".type memcpy,@function",
    "memcpy:", "mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret",
    ".globl memset", ".hidden memset", ".type memset,@function",
    "memset:", "mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret",
    // Copies downwards when the target lies behind the source.
    ".globl memmove", ".hidden memmove", ".type memmove,@function",
    "memmove:", "mov rax, rdi", "mov rcx, rdx", "cmp rdi, rsi", "ja 2f", "rep movsb", "ret",
    "2:", "lea rdi, [rdi + rcx - 1]", "lea rsi, [rsi + rcx - 1]", "std", "rep movsb", "cld", "ret",
    ".globl memcmp", ".hidden memcmp", ".type memcmp,@function",
    ".globl bcmp", ".hidden bcmp", ".type bcmp,@function",
    "memcmp:", "bcmp:", "mov rcx, rdx", "xor eax, eax", "test rcx, rcx", "je 3f",
    "repe cmpsb", "je 3f", "movzx eax, byte ptr [rdi - 1]", "movzx ecx, byte ptr [rsi - 1]",
    "sub eax, ecx", "3:", "ret",
    ".globl strlen", ".hidden strlen", ".type strlen,@function",
    "strlen:", "xor eax, eax", "4:", "cmp byte ptr [rdi + rax], 0", "je 5f", "inc rax", "jmp 4b",
    "5:", "ret",
);
