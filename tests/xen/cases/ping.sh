httpd
no_loss 1000 -i 0.002 10.0.0.3
no_loss 200 -i 0.002 -s 1472 10.0.0.3
# In fragments.
no_loss 100 -i 0.002 -s 4000 10.0.0.3
arping -c 5 -I xenbr0 10.0.0.3 | tail -n 2 | tee /tmp/arping
grep -q "Received 5 response" /tmp/arping || fail 'ARP requests were lost'
