httpd
no_loss 1000 -i 0.01 10.0.0.3
no_loss 200 -i 0.01 -s 1472 10.0.0.3
arping -c 10 -I xenbr0 10.0.0.3 | tail -n 2 | tee /tmp/arping
grep -q "Received 10 response" /tmp/arping || fail 'ARP requests were lost'
