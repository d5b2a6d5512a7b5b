unikernel ends httpd 10.0.0.9 32
xl shutdown -w ends
wait_gone ends
unikernel ends httpd 10.0.0.9 32
before=$(xl domid ends)
xl reboot ends
for i in $(seq 500); do
    now=$(xl domid ends 2>/dev/null || echo "$before")
    [ "$now" = "$before" ] || break
    sleep 0.02
done
expect 'a new domain' "$now" != "$before"
answers 10.0.0.9
fetches 10.0.0.9 1k
stop ends
