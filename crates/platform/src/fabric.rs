//! The fabric: bridge, veth pairs, hosts files.
