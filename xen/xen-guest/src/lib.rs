//! What a Xen guest needs to run: boot, memory, traps, events, grants, console, XenStore.
#![no_std]
