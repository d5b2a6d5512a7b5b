# Each optimisation off, the others on.
for off in split suppression gso csum batching persistent; do
    unikernel "off$off" httpd 10.0.0.3 64 "off=$off"
    listens 10.0.0.3 80
    pings "off-$off" 10.0.0.3
    pages "off-$off" 10.0.0.3 300
    file "off-$off" 10.0.0.3
    stop "off$off"
done
