for turn in $(seq 50); do
    unikernel often httpd 10.0.0.8 32
    [ $((turn % 10)) != 0 ] || { listens 10.0.0.8 80; fetches 10.0.0.8 1k; }
    stop often
done
xl list
expect 'domains that are left' "$(xl list | grep -c often || true)" = 0
# Nobody holds pages of a dead guest.
! dmesg | grep -iE 'grant.*(leak|still)' || fail 'dom0 complains'
