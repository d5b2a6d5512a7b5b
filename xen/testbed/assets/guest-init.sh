#!/bin/sh
# The Linux guest's first process. Its command line says its address and what it serves:
# fw_ip=10.0.0.2 fw_run=nginx,lighttpd,redis; and what it is to fetch,
# whose hashes it tells on its console: fw_get=http://10.0.0.3/file,http://...
# A program /start, if there is one, is started last.
busybox=/bin/busybox
[ -x $busybox ] || busybox=/usr/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
$busybox mount -t tmpfs tmp /tmp
$busybox mount -t tmpfs run /run
for module in /modules/*; do $busybox insmod "$module"; done
for word in $($busybox cat /proc/cmdline); do
    case $word in
        fw_ip=*) address=${word#fw_ip=} ;;
        fw_run=*) run=${word#fw_run=} ;;
        fw_get=*) get=${word#fw_get=} ;;
    esac
done
$busybox ifconfig lo 127.0.0.1 up
$busybox ifconfig eth0 "$address" netmask 255.255.255.0 up
echo 1024 >/proc/sys/net/core/somaxconn
for server in $(echo "$run" | $busybox tr , ' '); do
    case $server in
        nginx) $busybox mkdir -p /run/nginx /var/log/nginx && nginx -c /etc/nginx.conf ;;
        lighttpd) lighttpd -f /etc/lighttpd.conf ;;
        redis) redis-server --bind 0.0.0.0 --protected-mode no --save '' --appendonly no --daemonize yes ;;
    esac
done
for url in $(echo "$get" | $busybox tr , ' '); do
    $busybox wget -q -O - "$url" | $busybox sha256sum
done
[ ! -x /start ] || /start &
while :; do $busybox sleep 3600; done
