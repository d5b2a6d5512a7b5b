//! What the kernel says of a socket.
