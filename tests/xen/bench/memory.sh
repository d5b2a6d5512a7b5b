# The least memory of these in which it serves.
for memory in 4 6 8 12 16; do
    archive
    configure tiny 10.0.0.11 /job/httpd $memory 'ip=10.0.0.11/24 gw=10.0.0.1' /tmp/small.tar
    if create tiny && xl unpause tiny && ping -q -i 0.01 -c 1 -w 3 10.0.0.11 >/dev/null && fetches 10.0.0.11 1k 100k; then
        figure httpd memory_mib $memory
        stop tiny
        break
    fi
    xl destroy tiny
    wait_gone tiny
done
