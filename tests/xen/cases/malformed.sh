httpd
for seed in 1 2 3; do
    timeout 60 python3 /job/malformed.py xenbr0 10.0.0.3 "$(mac 10.0.0.3)" $seed 3000
    answers 10.0.0.3
    fetches 10.0.0.3 1k 100k
done
! console httpd | grep -iE 'panic|trap|fault' || fail 'the guest has trapped'
