//! Starting a program in a domain.
