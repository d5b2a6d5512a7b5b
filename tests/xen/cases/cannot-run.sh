# One line says why, and the domain ends.
configure unclear 10.0.0.22 /job/httpd 32 'ip=10.0.0.22'
create unclear
xl unpause unclear
says unclear 'fordway: cannot run here: what is "10.0.0.22"?'
expect 'lines' "$(console unclear | grep -c .)" = 1
for i in $(seq 200); do
    ! xl list unclear | grep -q 'sc-' || break
    sleep 0.02
done
# Shut down, as crashed: a toolstack starts it again or keeps it, as it was told.
xl list unclear | grep 'sc-'
stop unclear
