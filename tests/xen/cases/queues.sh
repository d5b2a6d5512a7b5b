# dom0 with one CPU offers one queue unless it is told to offer more; vifs made now offer four.
offered=/sys/module/xen_netback/parameters/max_queues
before=$(cat $offered)
echo 4 >$offered
unikernel queues httpd 10.0.0.20 64 queues=4
echo "$before" >$offered
listens 10.0.0.20 80
expect 'queues' "$(xenstore-read "/local/domain/$(xl domid queues)/device/vif/0/multi-queue-num-queues")" = 4
fetches 10.0.0.20 1k 1m 16m
no_loss 2000 -f 10.0.0.20
ab -q -k -c 20 -n 1000 http://10.0.0.20/index.html | grep -E 'Failed requests: +0$'
stop queues
