//! What dom0 asks of the domain through XenStore, and how the domain ends.
//!
//! | node, below the domain's directory | written by | meaning |
//! |---|---|---|
//! | `control/shutdown` | the toolstack | `poweroff`, `halt`, `reboot`, `suspend`; acknowledged by emptying it |
//! | `fordway/rules/...` | dom0 | the packet filter's rules, see `rules` |
//! | `fordway/address`, `fordway/peers/...` | dom0 | guests that may meet, see `guests` |
//! | `data/fordway` | the guest | one line on how it is: `up 10.0.0.2` |

use crate::guests::Guests;
use crate::xen::Xen;
use fordway_xen_guest::console_line;
use fordway_xen_guest::lifecycle::Reason;

pub const SHUTDOWN: &str = "control/shutdown";

/// What the main loop has to do.
pub enum Wish {
    Nothing,
    /// Look at the rules.
    #[cfg(feature = "filter")]
    Rules,
    /// Close the device, then end.
    End(Reason),
    /// Let go of the device and suspend.
    Suspend,
}

/// Begins to listen.
pub fn start(xen: &mut Xen) {
    // The toolstack looks at these before it asks.
    let suspend = xen
        .domain
        .can_suspend()
        .then_some("control/feature-suspend");
    for feature in ["control/feature-poweroff", "control/feature-reboot"]
        .into_iter()
        .chain(suspend)
    {
        xen.write(feature, "1");
    }
    xen.watch_as(SHUTDOWN, SHUTDOWN);
}

/// Looks at what has changed.
pub fn look(xen: &mut Xen, guests: &Guests) -> Wish {
    let mut wish = Wish::Nothing;
    while let Some(token) = xen.next_watch() {
        #[cfg(feature = "filter")]
        if token == crate::rules::COMMIT && matches!(wish, Wish::Nothing) {
            wish = Wish::Rules;
        }
        guests.note(&token);
        if token == SHUTDOWN {
            let Some(word) = xen.read(SHUTDOWN) else {
                continue;
            };
            let reason = match word.as_str() {
                "poweroff" | "halt" => Reason::PowerOff,
                "reboot" => Reason::Reboot,
                "" => continue,
                "suspend" if xen.domain.can_suspend() && !guests.are_met() => {
                    xen.write(SHUTDOWN, "");
                    return Wish::Suspend;
                }
                other => {
                    console_line!("fordway: control/shutdown says {other}: not done");
                    xen.write(SHUTDOWN, "");
                    continue;
                }
            };
            xen.write(SHUTDOWN, "");
            console_line!("fordway: {word}");
            wish = Wish::End(reason);
        }
    }
    wish
}
