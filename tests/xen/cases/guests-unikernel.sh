# A Linux guest with a broker, and two unikernels that were started after it: its programs reach kv and httpd by rings. What it
# does is in programs/guests-unikernel.sh.
further curl
program_guests guests-unikernel client:9
rm /tmp/further.cpio
archive
for guest in kv:20 httpd:21; do
    name=${guest%:*} address=10.0.0.${guest#*:} ramdisk=
    [ "$name" = kv ] || ramdisk=/tmp/www.tar
    configure "$name-rings" "$address" "/job/$name-guests" 128 "ip=$address/24 gw=10.0.0.1" $ramdisk
    # As the Linux guest.
    echo 'tsc_mode = "native"' >>"/run/guests/$name-rings.cfg"
    start "$name-rings"
done
meet='/job/fordway guests meet client=10.0.0.9 kv-rings=10.0.0.20 httpd-rings=10.0.0.21'
$meet
xl unpause client
has_said client 'guest: shown crowd' 300
/job/fordway guests part client
has_said client 'guest: parted'
$meet
has_said client 'guest: saves' 240
/job/fordway guests part client
has_said client 'guest: back on TCP' 240
for name in kv httpd; do
    for i in $(seq 200); do
        [ "$(console "$name-rings" | grep -c 'is gone')" != 2 ] || break
        sleep 0.1
    done
done
xl save kv-rings /tmp/kv.saved
xl restore /tmp/kv.saved
rm /tmp/kv.saved
answers 10.0.0.20
$meet
has_said client 'guest: done' 240
ended
for name in kv httpd; do
    console "$name-rings" | tr -d '\r' | sed "s/^/$name: /"
    said=$(xenstore-read "/local/domain/$(xl domid "$name-rings")/data/fordway-rings")
    echo "$name: $said"
    for bytes in $(echo "$said" | awk '{ print $2, $4 }'); do
        expect "bytes by rings, $name: $said" "$bytes" -gt 0
    done
done

compared client 'c1 c50' 'SET GET'
compared client 1m curl
rings_of client stream crowd again restored
for file in 1k 100k 1m; do
    expected=$(hash_of <"/job/www/$file")
    said=$(console client | tr -d '\r' | awk -v file="$file" '/^guest: HASH / && $3 == file { print $4 }' | sort -u)
    expect "$file: $said" "$said" = "$expected"
done

# A unikernel that goes takes nothing with it.
for name in kv httpd; do stop "$name-rings"; done
stop client
