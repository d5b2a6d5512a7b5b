//! Other processes: pidfd, credentials, eventfd.
