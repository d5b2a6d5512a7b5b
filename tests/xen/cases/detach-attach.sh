# By Debian's own script, as on a host.
VIF_SCRIPT=vif-bridge
unikernel plugged httpd 10.0.0.10 32
fetches 10.0.0.10 100k
for turn in 1 2 3; do
    xl network-detach plugged 0
    ! ping -q -c 2 -i 0.1 -W 0.2 10.0.0.10 >/dev/null || fail 'it answers without a device'
    xl network-attach plugged bridge=xenbr0 "mac=$(mac 10.0.0.10)"
    answers 10.0.0.10
    fetches 10.0.0.10 1k 100k
done
stop plugged
