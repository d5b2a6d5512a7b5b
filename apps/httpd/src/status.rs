//! The status codes that this server gives, in one list.

macro_rules! statuses {
    ($($name:ident = $code:literal $reason:literal,)*) => {
        /// What a reply begins with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Status {
            $(#[doc = concat!($code, " ", $reason)] $name = $code,)*
        }

        impl Status {
            /// All of them.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            /// Code and reason, as in the status line.
            pub const fn text(self) -> &'static str {
                match self { $(Status::$name => concat!($code, " ", $reason),)* }
            }

            /// The whole status line.
            pub(crate) const fn line(self) -> &'static str {
                match self { $(Status::$name => concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n"),)* }
            }
        }
    };
}

statuses! {
    Ok = 200 "OK",
    PartialContent = 206 "Partial Content",
    MovedPermanently = 301 "Moved Permanently",
    NotModified = 304 "Not Modified",
    BadRequest = 400 "Bad Request",
    NotFound = 404 "Not Found",
    MethodNotAllowed = 405 "Method Not Allowed",
    RequestTimeout = 408 "Request Timeout",
    PreconditionFailed = 412 "Precondition Failed",
    ContentTooLarge = 413 "Content Too Large",
    UriTooLong = 414 "URI Too Long",
    RangeNotSatisfiable = 416 "Range Not Satisfiable",
    MisdirectedRequest = 421 "Misdirected Request",
    HeaderFieldsTooLarge = 431 "Request Header Fields Too Large",
    NotImplemented = 501 "Not Implemented",
    ServiceUnavailable = 503 "Service Unavailable",
    VersionNotSupported = 505 "HTTP Version Not Supported",
}
