httpd
no_loss 1000 -i 0.01 10.0.0.3
no_loss 200 -i 0.01 -s 1400 10.0.0.3
no_loss 200 -i 0.01 -s 8000 10.0.0.3
arping -c 20 -i 0.05 -I xenbr0 10.0.0.3 2>/dev/null || arping -c 3 -I xenbr0 10.0.0.3
