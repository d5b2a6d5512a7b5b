//! Packets with descriptors over UNIX sockets.
