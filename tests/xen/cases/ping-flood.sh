httpd
no_loss 100000 -f 10.0.0.3
