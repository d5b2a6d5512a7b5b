# Two Linux guests find each other by XenStore and carry messages over granted pages
# (xen/xen-user/examples/pair.rs). Who is who, dom0 tells; what came of it is on their consoles.
cat /job/linux/small.cpio /job/linux/user.cpio /job/pair.cpio >/tmp/pair.cpio

for guest in server:8 client:9; do
    name=${guest%:*} address=10.0.0.${guest#*:}
    configure "$name" "$address" /job/linux/kernel 192 \
        "console=hvc0 quiet panic=-1 fw_ip=$address" /tmp/pair.cpio
    # As Xen does by itself on hardware, whose counter is invariant. QEMU's does not say so, and each
    # look at the clock would be a trap.
    echo 'tsc_mode = "native"' >>"/run/guests/$name.cfg"
    create "$name"
done
for guest in server:client client:server; do
    name=${guest%:*}
    xenstore-write "/local/domain/$(xl domid "$name")/data/pair" "$name $(xl domid "${guest#*:}")"
done

# has_said NAME LINE: in a while, unless one of them has failed before. An emulated second
# of sleep is nothing to the host, but processes are.
has_said() {
    local i logs=/var/log/xen/console
    for i in $(seq 80); do
        ! grep -q "^$2" "$logs/guest-$1.log" || return 0
        ! grep -q '^pair: FAILED' "$logs/guest-server.log" "$logs/guest-client.log" || break
        sleep 0.5
    done
    ended
    fail "$1 does not say: $2"
}

ended() {
    local name
    for name in server client; do
        console "$name" | tr -d '\r' | sed "s/^/$name: /"
    done
}

xl unpause server
xl unpause client
has_said server 'pair: done'
has_said client 'ready to survive'
stop server
has_said client 'pair: done'
ended
stop client
