//! Connected TCP sockets of a namespace, by sock_diag(7).
