//! A Xen guest.
#![no_std]
#![no_main]
extern crate alloc;
use fordway_xen_guest::{Domain, console_line, lifecycle, memory};
fordway_xen_guest::image!(main);

fn main(mut domain: Domain) -> ! {
    let name = domain
        .store
        .read(fordway_xen_guest::store::Transaction::NONE, "name");
    console_line!(
        "hello {:?} from {} free pages of {}, {:?}",
        name,
        memory::with(|m| m.free_pages()),
        memory::with(|m| m.page_count()),
        domain.command_line
    );
    console_line!("{} {}", domain.clock.now_ns(), domain.clock.wall_ns());
    if domain.command_line.contains("trap") {
        let p = core::hint::black_box(8 as *mut u32);
        // SAFETY: it traps, which is what was asked for.
        unsafe { p.write_volatile(1) };
    }
    domain.events.take(|port| console_line!("event {port}"));
    let t = domain.clock.now_ns();
    domain.events.sleep(Some(t + 10_000_000));
    console_line!("slept {}", domain.clock.now_ns() - t);
    lifecycle::end(lifecycle::Reason::PowerOff)
}
