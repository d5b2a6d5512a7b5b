#!/bin/bash
# What xl runs for a vif that has come or goes. Debian's vif-bridge does the same and more, by
# some forty processes, which under emulation take four times as long as all else of `xl create`.
if [ "$1" = online ]; then
    name=$(xenstore-read "$XENBUS_PATH/vifname" 2>/dev/null) || name=$vif
    # In this order: a device that is up keeps its name.
    ip link set dev "$vif" name "$name" master xenbr0 && ip link set dev "$name" up
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
fi
