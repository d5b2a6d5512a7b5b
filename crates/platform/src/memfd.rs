//! Shared memory: what a passed memfd must be, and mappings of it.
