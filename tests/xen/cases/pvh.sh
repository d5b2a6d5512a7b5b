archive
configure pvh 10.0.0.14 /job/httpd 32 'ip=10.0.0.14/24 gw=10.0.0.1' /tmp/small.tar
echo 'type = "pvh"' >>/run/guests/pvh.cfg
create pvh
xl unpause pvh
# It serves, or says in one line why it cannot and ends.
if ping -q -i 0.01 -c 1 -w 5 10.0.0.14 >/dev/null; then
    fetches 10.0.0.14 1k
    echo 'it serves as PVH'
else
    console pvh
    expect 'one clear line' "$(console pvh | grep -c .)" -ge 1
fi
if running pvh; then stop pvh; fi
