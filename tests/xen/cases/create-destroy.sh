# No more than these commands of xl, which are most of its time.
archive
configure often 10.0.0.8 /job/httpd 32 'ip=10.0.0.8/24 gw=10.0.0.1' /tmp/small.tar
create often
xl destroy often
for turn in $(seq 49); do
    while [ -e /sys/class/net/often ]; do sleep 0.005; done
    xl create /run/guests/often.cfg >/dev/null
    answers 10.0.0.8
    [ $((turn % 10)) != 0 ] || { listens 10.0.0.8 80; fetches 10.0.0.8 1k; }
    xl destroy often
done
wait_gone often
xl list
expect 'domains that are left' "$(xl list | grep -c often || true)" = 0
# Nobody holds pages of a dead guest.
! dmesg | grep -iE 'grant.*(leak|still)' || fail 'dom0 complains'
