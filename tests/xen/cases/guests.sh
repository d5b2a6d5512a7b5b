# Two Linux guests find each other by XenStore and carry messages over granted pages
# (xen/xen-user/examples/pair). Who is who, dom0 tells; what came of it is on their consoles.
pair_of_guests
has_said server 'pair: done'
has_said client 'ready to survive'
stop server
has_said client 'pair: done'
ended
stop client
