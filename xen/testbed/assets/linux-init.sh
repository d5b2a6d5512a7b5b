#!/bin/bash
# The first process of Linux alone: file systems, modules; then the job.
# Whatever fails here ends the machine, and the host shows this console.
export PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C
set -e
trap 'echo "init failed in line $LINENO"; echo b >/proc/sysrq-trigger' ERR

mount -t proc proc /proc
if [ -z "${ROOTED:-}" ]; then
    # An initramfs is no mount that pivot_root(2) can leave, as parts of Fordway do; the same tree, bound, is.
    mkdir /root/mount
    mount --bind / /root/mount
    cd /root/mount
    mount --move . /
    ROOTED=1 exec chroot . /bin/bash /init
fi
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /job/out
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
for module in /modules/*; do insmod "$module"; done
echo linux >/proc/sys/kernel/hostname

# The second serial port takes frames; nothing may be changed in them on their way.
stty -F /dev/ttyS1 raw -echo 115200
ip link set lo up

python3 /runner.py || echo "the runner failed"
echo b >/proc/sysrq-trigger
sleep 10
