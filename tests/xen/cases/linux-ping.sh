linux linux 10.0.0.2
no_loss 200 -i 0.01 10.0.0.2
no_loss 1000 -f 10.0.0.2
