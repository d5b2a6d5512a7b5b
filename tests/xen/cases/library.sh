# What the cases of the unikernel share, behind the test bed's own library.

# unikernel NAME IMAGE ADDRESS [MEMORY_MIB [WORD...]]: started, unless it runs already.
unikernel() {
    local name=$1 image=$2 address=$3 memory=${4:-64} ramdisk=
    if running "$name"; then return 0; fi
    shift $(($# < 4 ? $# : 4))
    if [ "$image" != kv ]; then
        ramdisk=/tmp/www.tar
        # Small memories get a small archive.
        [ "$memory" -ge 64 ] || ramdisk=/tmp/small.tar
        archive
    fi
    configure "$name" "$address" "/job/$image" "$memory" "ip=$address/24 gw=10.0.0.1 $*" $ramdisk
    start "$name"
}

archive() {
    [ ! -e /tmp/small.tar ] || return 0
    tar --format=ustar -cf /tmp/www.tar -C /job/www .
    tar --format=ustar -cf /tmp/small.tar -C /job/www index.html empty 1k 100k
}

# The two guests that most cases share.
httpd() { unikernel httpd httpd 10.0.0.3 && listens 10.0.0.3 80; }
kv() { unikernel kv kv 10.0.0.4 && listens 10.0.0.4 6379; }

hash_of() { sha256sum | cut -d ' ' -f 1; }

# fetches ADDRESS FILE...: by curl and by wget, every byte as in /job/www.
fetches() {
    local address=$1 file expected got
    shift
    for file in "$@"; do
        expected=$(hash_of <"/job/www/$file")
        got=$(curl -sS --fail -m 60 "http://$address/$file" | hash_of)
        expect "$file by curl" "$got" = "$expected"
        got=$(wget -q -T 60 -t 1 -O - "http://$address/$file" | hash_of)
        expect "$file by wget" "$got" = "$expected"
    done
}

# no_loss COUNT WORDS...: so many pings, all answered.
no_loss() {
    local count=$1 said
    shift
    said=$(ping -q -c "$count" "$@") || true
    echo "$said" | tail -n 3
    echo "$said" | grep -q "$count packets transmitted, $count received, 0% packet loss" ||
        fail "pings were lost"
}

# give_rules NAME FILE: compiled rules for the guest's filter, into XenStore.
give_rules() {
    local domain part count=0
    domain=/local/domain/$(xl domid "$1")
    rm -f /tmp/part.*
    od -An -v -tx1 "$2" | tr -d ' \n' | split -b 4000 - /tmp/part.
    for part in /tmp/part.*; do
        xenstore-write "$domain/fordway/rules/$count" "$(cat "$part")"
        count=$((count + 1))
    done
    xenstore-write "$domain/fordway/rules/commit" $count
}

# rules NAME FILE: the same to a guest that runs; prints its answer.
rules() {
    local answer i
    answer=/local/domain/$(xl domid "$1")/data/fordway-rules
    xenstore-rm "$answer" 2>/dev/null || true
    give_rules "$1" "$2"
    for i in $(seq 200); do
        xenstore-read "$answer" 2>/dev/null && return 0
        sleep 0.02
    done
    fail 'the guest says nothing of its rules'
}

# The guests that a case has, by their names.
guests='server client'

# program_guests CASE NAME:NUMBER...: such guests at 10.0.0.NUMBER, paused. What they do is in programs/CASE.sh, by their names;
# it is on their consoles, in lines `guest: ...`.
program_guests() {
    local case=$1 guest name address
    shift
    cat /job/linux/small.cpio /job/linux/user.cpio /job/linux/programs.cpio /job/fordway.cpio \
        $(ls /job/hostile.cpio /tmp/further.cpio 2>/dev/null) >/tmp/programs.cpio
    guests=
    for guest in "$@"; do
        name=${guest%:*} address=10.0.0.${guest#*:}
        configure "$name" "$address" /job/linux/kernel 256 \
            "console=hvc0 quiet panic=-1 fw_ip=$address fw_case=$case fw_role=$name" /tmp/programs.cpio
        # As in the case `guests`.
        echo 'tsc_mode = "native"' >>"/run/guests/$name.cfg"
        create "$name"
        guests="$guests $name"
    done
    rm /tmp/programs.cpio
}

# further PROGRAM: one of dom0's, with what it is linked to, for guests that are made next (/tmp/further.cpio).
further() {
    local file
    mkdir -p /tmp/further/usr/bin /tmp/further/usr/lib/x86_64-linux-gnu
    cp -L "$(command -v "$1")" /tmp/further/usr/bin
    for file in $(/lib64/ld-linux-x86-64.so.2 --list "$(command -v "$1")" | grep -o '/[^ ]*/lib[^ ]*'); do
        cp -L "$file" /tmp/further/usr/lib/x86_64-linux-gnu
    done
    (cd /tmp/further && find . | cpio -o -H newc --quiet) >/tmp/further.cpio
    rm -r /tmp/further
}

# has_said NAME LINE [SECONDS]: in emulated seconds, unless one of the guests has failed before.
has_said() {
    local name logs=() limit=$((SECONDS + ${3:-120}))
    for name in $guests; do logs+=("/var/log/xen/console/guest-$name.log"); done
    while [ $SECONDS -lt $limit ]; do
        ! grep -q "^$2" "/var/log/xen/console/guest-$1.log" || return 0
        ! grep -q '^[a-z]*: FAILED' "${logs[@]}" || break
        sleep 0.5
    done
    ended
    fail "$1 does not say: $2"
}

# pair_of_guests [WORDS]: a server and a client, which run xen/xen-user/examples/pair, and are told WORDS.
pair_of_guests() {
    local guest name address
    cat /job/linux/small.cpio /job/linux/user.cpio /job/pair.cpio >/tmp/pair.cpio

    for guest in server:8 client:9; do
        name=${guest%:*} address=10.0.0.${guest#*:}
        configure "$name" "$address" /job/linux/kernel 192 \
            "console=hvc0 quiet panic=-1 fw_ip=$address" /tmp/pair.cpio
        # As Xen does by itself on hardware, whose counter is invariant. QEMU's does not say so, and each
        # look at the clock would be a trap.
        echo 'tsc_mode = "native"' >>"/run/guests/$name.cfg"
        create "$name"
    done
    for guest in server:client client:server; do
        name=${guest%:*}
        xenstore-write "/local/domain/$(xl domid "$name")/data/pair" "$name $(xl domid "${guest#*:}")${1:-}"
    done

    xl unpause server
    xl unpause client
}

# What such guests have said.
ended() {
    local name
    for name in $guests; do
        console "$name" | tr -d '\r' | sed "s/^/$name: /"
    done
}

# compared GUEST "KEY..." "KEY...": of each two keys, figures without the library and with it, as the guest says them in lines
# `FIGURE plain|fordway KEY KEY PER_SECOND`.
compared() {
    local guest=$1 one other plain fordway
    per_s() { console "$guest" | tr -d '\r' | awk -v key="$1 $2 $3" '/^FIGURE / && $2 " " $3 " " $4 == key { print $5 }'; }
    for one in $2; do
        for other in $3; do
            plain=$(per_s plain "$one" "$other") fordway=$(per_s fordway "$one" "$other")
            expect "figures of $guest, $one $other: $plain, $fordway" -n "$plain" -a -n "$fordway"
            echo "$guest, $one $other: $plain/s without the library, $fordway/s with it," \
                "$(awk "BEGIN { printf \"%.2f\", $fordway / $plain }") times"
        done
    done
}

# rings_of GUEST WORD...: at each of these looks bytes had gone by rings, each way, as the guest's broker had it.
rings_of() {
    local guest=$1 word line bytes
    shift
    for word in "$@"; do
        line=$(console "$guest" | tr -d '\r' | grep "^guest: RINGS $word ") || fail "$guest says nothing of $word"
        for bytes in $(echo "$line" | awk '{ print $5, $7 }'); do
            expect "bytes by rings, $guest: $line" "$bytes" -gt 0
        done
    done
}
