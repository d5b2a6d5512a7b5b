# What every case may use. Read by bash with `set -eu -o pipefail`.
#
# dom0's bridge is 10.0.0.1; a guest at 10.0.0.N has the MAC 00:16:3e:00:00:N.

mac() { printf '00:16:3e:00:00:%02x' "${1##*.}"; }

fail() {
    echo "FAILED: $*"
    exit 1
}

# expect WHAT TEST...: `test TEST...`, or the case fails and says what.
expect() {
    local what=$1
    shift
    test "$@" || fail "$what: test $*"
}

# less A B: as decimals.
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

# The guest's configuration in xl.cfg(5)'s form; more lines may be appended to the file.
# VIF_SCRIPT=vif-bridge has xl run Debian's script instead of the test bed's short one.
# configure NAME ADDRESS KERNEL MEMORY_MIB COMMAND_LINE [RAMDISK]
configure() {
    cat >"/run/guests/$1.cfg" <<END
name = "$1"
kernel = "$3"
memory = $4
vcpus = 1
extra = "$5"
vif = ['bridge=xenbr0,mac=$(mac "$2"),vifname=$1,script=${VIF_SCRIPT:-vif-plug}']
on_crash = "preserve"
END
    [ -z "${6:-}" ] || echo "ramdisk = \"$6\"" >>"/run/guests/$1.cfg"
    echo "$2" >"/run/guests/$1.address"
}

# A second vif of that name cannot be made before the kernel has let go of the first.
wait_gone() {
    local i
    for i in $(seq 500); do
        [ -e "/sys/class/net/$1" ] || xl domid "$1" >/dev/null 2>&1 || return 0
        sleep 0.02
    done
    fail "$1 does not go away"
}

# create NAME: paused; neighbours are static, so that no request waits a second for ARP.
create() {
    local address
    address=$(cat "/run/guests/$1.address")
    wait_gone "$1"
    : >"/var/log/xen/console/guest-$1.log"
    xl create -p "/run/guests/$1.cfg" >/dev/null
    ip neigh replace "$address" lladdr "$(mac "$address")" dev xenbr0
}

# answers ADDRESS [SECONDS]: until a ping is answered.
answers() {
    # With a deadline, ping ends at the first answer, not at the first request.
    ping -q -i 0.002 -c 1 -w "${2:-30}" "$1" >/dev/null || fail "$1 answers no ping"
}

# start NAME: created and running, and it answers.
start() {
    create "$1"
    xl unpause "$1"
    answers "$(cat "/run/guests/$1.address")"
}

# eagerly COMMAND...: with guests that may interrupt dom0 at once when they wake. httperf
# never sleeps, and on one CPU Xen would let it look for a reply for 10 ms each time
# (credit2's rate limit, which keeps a guest that was just woken from running).
eagerly() {
    local status=0
    xl sched-credit2 -s -r 0
    "$@" || status=$?
    xl sched-credit2 -s -r 1000
    return $status
}

running() { xl domid "$1" >/dev/null 2>&1; }

# The console's text so far.
console() { cat "/var/log/xen/console/guest-$1.log"; }

# says NAME TEXT [SECONDS]: until the console has said it.
says() {
    local i
    for i in $(seq $((${3:-20} * 50))); do
        console "$1" | grep -qF -- "$2" && return 0
        sleep 0.02
    done
    fail "$1 does not say: $2"
}

stop() {
    xl destroy "$1"
    wait_gone "$1"
}

# listens ADDRESS PORT: until a connection is accepted.
listens() {
    local i
    for i in $(seq 1500); do
        # A closed port refuses at once.
        (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null && return 0
        sleep 0.02
    done
    fail "nobody listens on $1:$2"
}

# linux NAME ADDRESS [SERVER,...]: a Linux PV guest, unless it runs already;
# servers: nginx, lighttpd (port 81), redis.
linux() {
    local ramdisk=/job/linux/small.cpio memory=192
    if running "$1"; then return 0; fi
    if [ -n "${3:-}" ]; then
        memory=320
        ramdisk=/tmp/servers.cpio
        if [ ! -e $ramdisk ]; then
            cat /job/linux/servers.cpio >$ramdisk
            [ ! -e /job/www.cpio ] || cat /job/www.cpio >>$ramdisk
        fi
    fi
    configure "$1" "$2" /job/linux/kernel $memory \
        "console=hvc0 quiet panic=-1 fw_ip=$2 fw_run=${3:-}" $ramdisk
    start "$1"
    case ${3:-} in *nginx*) listens "$2" 80 ;; esac
    case ${3:-} in *lighttpd*) listens "$2" 81 ;; esac
    case ${3:-} in *redis*) listens "$2" 6379 ;; esac
}
