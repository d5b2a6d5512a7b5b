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

xl unpause server
xl unpause client
has_said server 'pair: done'
has_said client 'ready to survive'
stop server
has_said client 'pair: done'
ended
stop client
