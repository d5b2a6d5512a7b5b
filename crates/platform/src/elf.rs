//! What an executable image is.
